// The 16-bit floating-point types: they are stored and sent, and computed with as float32.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>

namespace lockstep::flat {

// Half types are added in float32 and rounded once, at the root of the tree.
constexpr bool is_half(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}
constexpr DType sum_type(DType dtype) {
  return is_half(dtype) ? DType::kFloat32 : dtype;
}

// Exact; and round to nearest, ties to even. A NaN keeps its sign and as much of its payload as
// there is room for, and is quiet afterwards, except in a widened bfloat16, whose bits stay.
void widen(DType half, const void* from, float* to, std::size_t count);
void narrow(DType half, const float* from, void* to, std::size_t count);

}  // namespace lockstep::flat
