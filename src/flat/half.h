// The 16-bit floating-point types. They are used for storage and messages; computing is in float32.
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

// widen is exact. narrow rounds to nearest, ties to even. A NaN keeps its sign and as much of its
// payload as there is room for. It becomes a quiet NaN, except if a bfloat16 is widened: its bits
// do not change.
void widen(DType half, const void* from, float* to, std::size_t count);
void narrow(DType half, const float* from, void* to, std::size_t count);

}  // namespace lockstep::flat
