// What goes from the host to a GPU: batches, and small tables. They go from pinned memory, because only then does the
// host not wait for the copy.
#pragma once

#include <lockstep/dataset.h>
#include <torch/torch.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "torch/device/device.h"

namespace lockstep::device {

// The batch in pinned memory. Tensors that are on a GPU already stay there; if `other_thread`, another thread than move()'s
// has made them, and this waits until they are there.
Batch ready_to_move(const Batch& batch, bool other_thread, Deadline deadline);

// Copies batches on a side stream while the GPU computes. The Reader owns it.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   Unavailable, or what LibTorch throws, if there is no memory.
// Ownership: a batch belongs to the caller, who uses it on the current stream after arrive().
class Upload {
 public:
  explicit Upload(Device device) : device_(device), side_(device) {}

  // Queues the copy, and returns the batch that will have it.
  Batch move(const Batch& batch);

  // What is queued on the current stream from here on waits for the last copy.
  void arrive();

 private:
  Device device_;
  SideStream side_;
  Event arrived_;
};

// Nothing for the CPU, where batches are read to.
std::optional<Upload> upload_to(Device device);

// A few numbers or pointers in a GPU's memory, which kernels read and the host changes now and then.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   what LibTorch throws if there is no memory.
// Ownership: owns its memory.
class SmallTable {
 public:
  explicit SmallTable(Device device) : device_(device) {}

  // What the current stream reads there from here on. Copied only if it has changed.
  void set(const std::vector<std::byte>& bytes);
  template <typename T>
  void set(const std::vector<T>& values) {
    const auto* const first = reinterpret_cast<const std::byte*>(values.data());
    set(std::vector<std::byte>(first, first + values.size() * sizeof(T)));
  }

  const void* data() const { return memory_.data_ptr(); }

 private:
  Device device_;
  std::vector<std::byte> bytes_;
  torch::Tensor memory_;
};

}  // namespace lockstep::device
