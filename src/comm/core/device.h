// Collectives on memory of devices, for engines that have devices. Such a collective ends twice:
// when it is queued on the device, and when the device has done it.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/comm.h>
#include <lockstep/deadline.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "comm/core/header.h"
#include "flat/fold.h"

namespace lockstep::comm {

// Several parts with elements of one type on one device, treated as one buffer.
//
// Threads:   a value.
// Blocking:  never.
// Failure:   none.
// Ownership: none, as Buffer.
class Spread {
 public:
  Spread() = default;
  Spread(const Buffer& whole)  // NOLINT: implicit, since most buffers lie in one piece
      : Spread(std::vector<Buffer>{whole}) {}
  explicit Spread(std::vector<Buffer> parts) : parts_(std::move(parts)) {
    for (const Buffer& part : parts_) count_ += part.count;
    if (!parts_.empty()) dtype_ = parts_.front().dtype;
  }

  const std::vector<Buffer>& parts() const { return parts_; }
  DType dtype() const { return dtype_; }
  std::size_t count() const { return count_; }  // elements of all parts
  std::size_t bytes() const { return count_ * size_of(dtype_); }

  // The `length` elements that begin with element `first`. No part of the result is empty.
  Spread slice(std::size_t first, std::size_t length) const {
    Spread some;
    some.dtype_ = dtype_;
    some.count_ = length;
    for (const Buffer& part : parts_) {
      const std::size_t skipped = std::min(first, part.count);
      const std::size_t taken = std::min(length, part.count - skipped);
      if (taken > 0) some.parts_.push_back(part.slice(skipped, taken));
      first -= skipped;
      length -= taken;
    }
    return some;
  }

 private:
  std::vector<Buffer> parts_;
  DType dtype_ = DType::kFloat32;
  std::size_t count_ = 0;
};

class Exchange;

// What messages say after a count of elements; empty for memory of the CPU.
inline const char* text_of_memory(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? " on GPUs" : "";
}

// One collective, as plain data.
struct DeviceTask {
  Kind kind = Kind::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;  // or native
  flat::Fold fold;
  // This worker's operands of a reduction, in parts as the result; or the data of an all_to_all.
  std::vector<Spread> partials;
  int shards = 0;  // of the reduction
  Spread result;  // one part, except for all-reduce; its parts have the same counts on every worker
  int root = 0;
  // Elements of each worker's slice: reduce_scatter, all_gather; of each pair's: all_to_all.
  std::vector<std::size_t> counts;
};

// The rest of an operation after it was queued on its device.
//
// Threads:   any.
// Blocking:  wait blocks until its deadline, or until the engine gives the operation up.
// Failure:   wait and wait_on throw what ended the operation. A wait that passes its deadline ends
//            the link.
// Ownership: may outlive the link; does not keep it alive.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;

  virtual bool done() = 0;  // has ended, well or not
  virtual void wait() = 0;
  virtual void wait(Deadline deadline) = 0;
  virtual void wait_on(void* stream) = 0;
};

// A point in the streams of some buffers. After it, what the buffers hold is complete.
class DevicePoint {
 public:
  virtual ~DevicePoint() = default;
};

// Some workers of a link, each with a device.
//
// Threads:   one caller at a time, except for start: the channel's queue calls it, also one at a
//            time.
// Blocking:  start blocks until the collective is queued on the device. The destructor blocks until
//            the device uses no buffer any more, for seconds at most.
// Failure:   require_usable throws BadInput; the rest as Exchange.
// Ownership: buffers are borrowed until the returned work has ended. Borrows the link.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;

  virtual void require_usable(const Buffer& data) = 0;

  // Called when the program calls a collective. The device begins the collective after this point.
  virtual std::shared_ptr<DevicePoint> mark(const DeviceTask& task) = 0;

  // Called when all members have met and do the same.
  virtual std::shared_ptr<DeviceWork> start(Exchange& exchange, const DeviceTask& task,
                                            const DevicePoint& after) = 0;

  virtual std::shared_ptr<DeviceArena> make_arena(Device device, std::size_t bytes) = 0;

  // The device has nothing left to do.
  virtual bool idle() = 0;
};

}  // namespace lockstep::comm
