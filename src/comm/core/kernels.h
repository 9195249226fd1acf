// Arithmetic on stretches of elements. Every function gives the bits of its scalar definition,
// whatever the compiler made of the loop and wherever the stretch begins.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/comm.h>

#include <cstddef>
#include <span>
#include <vector>

#include "plan/tree.h"

namespace lockstep::comm {

// Half types are added in float32 and rounded once, at the root of the tree.
constexpr bool is_half(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}
constexpr DType sum_type(DType dtype) {
  return is_half(dtype) ? DType::kFloat32 : dtype;
}

// out[i] = left[i] op right[i]. `out` may be either operand. Whole numbers wrap. A NaN stays one.
void combine(DType dtype, ReduceOp op, const void* left, const void* right, void* out,
             std::size_t count);

// Exact; and round to nearest, ties to even.
void widen(DType half, const void* from, float* to, std::size_t count);
void narrow(DType half, const float* from, void* to, std::size_t count);

// Sums everyone's partials of a stretch in the order of a plan, in pieces that stay in cache.
class TreeSum {
 public:
  TreeSum(const plan::Reduction& plan, DType dtype, ReduceOp op);

  // operands[i] is the plan's operand i, all of `count` elements; `out` may be any of them.
  void run(std::span<const void* const> operands, void* out, std::size_t count);

 private:
  // Where a value lies while a piece is summed: an operand, or a scratch row.
  struct Place {
    bool scratch = false;
    int index = 0;
  };
  struct Step {
    Place left;
    Place right;
    int into = 0;  // scratch row
  };
  const void* locate(Place place, std::span<const void* const> operands, std::size_t first) const;
  void run_piece(std::span<const void* const> operands, void* out, std::size_t first,
                 std::size_t count);

  DType dtype_;
  ReduceOp op_;
  std::size_t operands_;
  std::vector<Step> steps_;
  std::vector<std::vector<std::byte>> rows_;
};

}  // namespace lockstep::comm
