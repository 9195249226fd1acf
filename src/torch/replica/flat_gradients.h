// All gradients of a model in one memory, in the fixed layout.
#pragma once

#include <lockstep/arena.h>
#include <lockstep/buffer.h>
#include <lockstep/data_parallel.h>

#include <memory>
#include <string>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   Unavailable when there is no memory for them; BadInput from check().
// Ownership: the memory lives as long as any gradient that views it.
class FlatGradients {
 public:
  // `parameters` in registration order, as the layout numbers them. Every parameter's gradient
  // becomes a view of the memory; a gradient that it had is kept.
  FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout);

  void clear();

  // BadInput, naming the parameter and the likely reason, if its gradient is not in its place.
  void check(std::size_t entry) const;

  Buffer bucket(const plan::Bucket& bucket) const;

  // Multiplies the elements of a bucket.
  void scale(const plan::Bucket& bucket, double factor) const;

  std::byte* data() const { return arena_->data(); }

 private:
  struct Place {
    std::string name;
    torch::Tensor parameter;
    torch::Tensor view;
  };
  std::shared_ptr<Arena> arena_;
  std::size_t bytes_;
  std::vector<Place> places_;  // by entry of the layout
};

}  // namespace lockstep::replica
