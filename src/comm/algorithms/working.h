// Half types are added as float32 and are rounded once, at the root of the tree. So the algorithms
// that pass sums from worker to worker work on a float32 copy, and send that.
#pragma once

#include "comm/core/exchange.h"
#include "flat/fold.h"

namespace lockstep::comm {

// The memory of such an algorithm. The copy and the staging memory are scratch memory of the
// channel.
struct Working {
  Buffer sums;         // the buffer itself, or its float32 copy
  std::byte* staging;  // room for `staged` elements of the working type

  Working(Exchange& exchange, const Buffer& data, std::size_t staged) {
    const bool half = flat::is_half(data.dtype);
    const std::size_t element = size_of(flat::sum_type(data.dtype));
    staging = exchange.scratch((staged + (half ? data.count : 0)) * element);
    sums = data;
    if (!half) return;
    sums.data = staging + staged * element;
    sums.dtype = DType::kFloat32;
    flat::widen(data.dtype, data.data, static_cast<float*>(sums.data), data.count);
  }

  // Multiplies the finished sums of a stretch and rounds them into the caller's buffer.
  void finish(const Buffer& data, std::size_t first, std::size_t count, double factor) const {
    void* const at = sums.slice(first, 0).data;
    if (factor != 1) flat::scale(sums.dtype, factor, at, at, count);
    if (!flat::is_half(data.dtype)) return;
    flat::narrow(data.dtype, static_cast<const float*>(at), data.slice(first, 0).data, count);
  }
};

}  // namespace lockstep::comm
