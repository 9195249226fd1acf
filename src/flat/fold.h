// Arithmetic on stretches of elements. Every function gives the bits of its scalar definition, with
// all instructions that a processor may have (dispatch.h), and for every address at which a stretch
// begins.
#pragma once

#include <lockstep/buffer.h>

#include <array>
#include <cstddef>

#include "flat/half.h"

namespace lockstep::flat {

// Elements of a strip. Two operands and a result of 8 bytes each then fit into a first-level cache.
inline constexpr std::size_t kStripElements = 1024;

// How two elements become one: (left op right) · factor. Half types are computed in float32 and
// rounded once. Other types are computed in their own type; the factor is first rounded to that
// type. Integers wrap around, and their factor is 1. With a factor of 1 there is no multiplication.
struct Fold {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;
};

// out[i] = left[i] op right[i], times the factor. `out` may be either operand. A NaN stays a NaN.
void combine(const Fold& fold, const void* left, const void* right, void* out, std::size_t count);
inline void combine(DType dtype, ReduceOp op, const void* left, const void* right, void* out,
                    std::size_t count) {
  combine(Fold{dtype, op}, left, right, out, count);
}

// out[i] = ((a[i] + b[i]) + (c[i] + d[i])) · factor for float32 and float64: three sums in one pass. `out` may be any
// operand.
void add_four(const Fold& fold, const std::array<const void*, 4>& operands, void* out,
              std::size_t count);

// out[i] = from[i] · factor, as above. `out` may be `from`.
void scale(DType dtype, double factor, const void* from, void* out, std::size_t count);

// The sum of the squares of at most kStripElements floating-point elements, in float64:
//   lane l of kSquareLanes adds the squares of elements l, l + kSquareLanes, … one after the other;
//   then lane l becomes lane 2l + lane 2l+1 until one is left.
inline constexpr std::size_t kSquareLanes = 32;
double sum_of_squares(DType dtype, const void* from, std::size_t count);

// The largest magnitude of floating-point elements, in float64; 0 for none, a NaN if one is a NaN.
double largest(DType dtype, const void* from, std::size_t count);

// out[i] = from[i] limited to −most … most, for floating-point types. `out` may be `from`. A NaN
// stays a NaN.
void limit(DType dtype, double most, const void* from, void* out, std::size_t count);

}  // namespace lockstep::flat
