// All gradients of a model in one memory, in the fixed layout.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/data_parallel.h>

#include <string>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   BadInput from check().
// Ownership: the memory lives as long as any gradient that views it.
class FlatGradients {
 public:
  // `parameters` in registration order, as the layout numbers them.
  FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                FlatMemory memory);

  // Every parameter's gradient becomes a view of the memory. take_over() keeps the values that
  // gradients have.
  void attach();
  void take_over();

  void clear() const { memory_.clear(); }

  // BadInput, naming the parameter and the likely reason, if its gradient is not in its place.
  void check(std::size_t entry) const;

  Buffer bucket(const plan::Bucket& bucket) const;

  const FlatMemory& memory() const { return memory_; }

 private:
  struct Place {
    std::string name;
    torch::Tensor parameter;
    torch::Tensor view;
  };
  FlatMemory memory_;
  std::vector<Place> places_;  // by entry of the layout
};

}  // namespace lockstep::replica
