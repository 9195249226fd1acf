// Owners of streams, events and memory of the current device.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

#include "flat/cuda/runtime.h"

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

struct FreeMemory {
  void operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }
};

// Memory of the device.
//
// Threads:   a value; streams of the device use the memory.
// Blocking:  the constructors wait for the device. Use them at the start of a job, not in its
//            steps.
// Failure:   Unavailable with the library's words.
// Ownership: owns the memory.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // All bytes 0.
  explicit DeviceArray(std::size_t count) : size_(count) {
    if (count == 0) return;
    void* memory = nullptr;
    check(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
    memory_.reset(memory);
    check(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (values.empty()) return;
    check(cudaMemcpy(data(), values.data(), size_ * sizeof(T), cudaMemcpyDefault), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaMemcpy");  // it may return before streams see it
  }

  T* data() const { return static_cast<T*>(memory_.get()); }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<void, FreeMemory> memory_;
  std::size_t size_ = 0;
};

}  // namespace lockstep::cuda
