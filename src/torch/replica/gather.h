// Gradients of a GPU from where backward has made them into flat memory: one kernel for a bucket.
#pragma once

#include <memory>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  never; what it does is queued on LibTorch's current stream.
// Failure:   Unavailable when the device fails.
// Ownership: of its tables.
class Gather {
 public:
  virtual ~Gather() = default;

  // `gradients` are those of the bucket's entries, null for none; 0 + g goes into the memory, which has the layout that this
  // was made with, or that of its sums, `dtype`; or g is added to what is there.
  virtual void run(const plan::Bucket& bucket, const std::vector<const void*>& gradients,
                   const FlatMemory& memory, DType dtype, bool adds) = 0;
};

// Null for the CPU.
std::shared_ptr<Gather> make_gather(const plan::Layout& layout, const plan::Pieces& pieces,
                                    Device device);

}  // namespace lockstep::replica
