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

  // Where they go: memory in the layout that this was made with, or in that of its sums, `wide`; the bucket's entries are
  // of `dtype` there.
  struct Into {
    const FlatMemory& memory;
    DType dtype;
    bool wide;
  };
  // `gradients` are those of the bucket's entries, null for none, flat::left_alone() for one whose place is not touched;
  // 0 + g goes there, or g is added to what is there.
  virtual void run(const plan::Bucket& bucket, const std::vector<const void*>& gradients,
                   const Into& into, bool adds) = 0;
};

// Null for the CPU.
std::shared_ptr<Gather> make_gather(const plan::Layout& layout, const plan::Pieces& pieces,
                                    Device device);

}  // namespace lockstep::replica
