// Batches on their way to a GPU.
#pragma once

#include <lockstep/dataset.h>

#include <memory>

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

// To a GPU; nothing for the CPU, where batches are already.
std::unique_ptr<Upload> make_upload(Device device);

}  // namespace lockstep::device
