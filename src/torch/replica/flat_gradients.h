// All gradients of a model in one memory, in the fixed layout.
//
// A gradient is there when param.grad views its place. After clear() it is undefined, so that backward makes a new one
// and need not add to zeros; adopt() then moves it in, as 0 + g, which is what adding would have given.
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

  // Every parameter's gradient becomes a view of the memory.
  void attach();

  void clear();

  // Moves a gradient that backward has made elsewhere to its place. BadInput, naming the parameter and the likely
  // reason, for one that cannot be.
  void adopt(std::size_t entry);

  // All gradients are in their places after: those that nobody has made are zero.
  void settle();

  // BadInput, naming the parameter, if its gradient could not be moved in.
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
