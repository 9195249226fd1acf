// Streams and events of the current device, owned.
#pragma once

#include <memory>
#include <type_traits>

#include "flat/cuda/check.h"

namespace lockstep::cuda {

struct DestroyStream {
  void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

// Not ordered with the default stream.
inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return Stream(stream);
}

enum class Timing { kNo, kYes };
inline Event make_event(Timing timing = Timing::kNo) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(
            &event, timing == Timing::kYes ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
  return Event(event);
}

}  // namespace lockstep::cuda
