// The values of all trained parameters in one memory, in the fixed layout.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/layout.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  the constructor and keep_one_copy(), which are collective.
// Failure:   Unavailable when there is no memory for them; BadInput from take_back().
// Ownership: shares the tensors; the memory lives as long as any of them views it.
class FlatParameters {
 public:
  // Every worker holds the same values. With one copy per host only the first worker's are kept.
  FlatParameters(Comm& comm, const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                 Copies copies, Device device = {});

  // One copy per host from here on, where workers share memory.
  void keep_one_copy(Comm& comm);

  // Whether a parameter's values are where they were put. torch::load() and module->to() give a parameter other memory.
  bool holds(std::size_t entry) const;

  // Copies a moved parameter's values back into the flat memory. BadInput, naming the parameter, if it has another type,
  // shape or device now, or if workers share one copy, which no worker writes to alone.
  void take_back(std::size_t entry);

  // Where workers share one copy, an optimizer of each worker's own would update it again and again. So after a pass a
  // sample of the values is kept, until Lockstep itself has written to them: if they change before that, something else
  // has.
  void note_pass();
  void note_update() { after_pass_.reset(); }
  bool written_by_others() const;

  const FlatMemory& memory() const { return memory_; }

 private:
  void move_in(Comm& comm);

  plan::Layout layout_;
  std::vector<NamedTensor> parameters_;      // by entry of the layout
  std::vector<torch::Tensor> views_;         // their places
  std::optional<std::uint64_t> after_pass_;  // the sample
  Copies copies_;
  FlatMemory memory_;
};

}  // namespace lockstep::replica
