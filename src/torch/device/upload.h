// What goes from the host to a GPU: batches, and small tables. From pinned memory, so that nobody waits for a copy.
#pragma once

#include <lockstep/dataset.h>
#include <torch/torch.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "torch/device/device.h"

namespace lockstep::device {

// The batch in memory that a GPU can copy from by itself: only from there is a copy one that nobody waits for. What is on a
// GPU is waited for, if another thread than move()'s has made it.
Batch ready_to_move(const Batch& batch, bool other_thread, Deadline deadline);

// Copies on a stream of its own, beside what is computed.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   Unavailable, or what LibTorch throws, when there is no memory.
// Ownership: a batch is the caller's, to be used on the current stream after arrive().
class Upload {
 public:
  explicit Upload(Device device) : device_(device), side_(device) {}

  // A batch that is on its way.
  Batch move(const Batch& batch);

  // What is queued on the current stream from here on waits for the last one.
  void arrive();

 private:
  Device device_;
  SideStream side_;
  Event arrived_;
};

// Nothing for the CPU, where batches are already.
std::optional<Upload> upload_to(Device device);

// A few numbers or pointers that kernels read in a GPU's memory, and that the host changes now and then.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   what LibTorch throws when there is no memory.
// Ownership: of its memory.
class SmallTable {
 public:
  explicit SmallTable(Device device) : device_(device) {}

  // What the current stream reads there from here on; copied only if it has changed.
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
