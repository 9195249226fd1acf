// The state of an optimizer: memories in the model's layout, once per host, since each element of it is updated by one
// worker of the host alone.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch/replica/parts.h"

namespace lockstep::optim {

// Whether half parameters have float32 masters where the model is.
bool wants_masters(const replica::Parts& model);

// On a GPU parameters of half types have float32 masters, on which updates compute; the parameters are what they are
// rounded to. They are the last of the memories, named "master".
//
// Threads:   one caller at a time.
// Blocking:  the constructor, which is collective.
// Failure:   Unavailable when there is no memory for it.
// Ownership: shares the model's tensors.
class StateMemory {
 public:
  // `names` of the memories, one value per element each.
  StateMemory(replica::Parts& model, std::vector<std::string> names);

  // The model has gone to other workers: values are those of the rank that its are of. Collective.
  void rebind();

  const std::vector<replica::FlatMemory>& memories() const { return memories_; }
  // Of the memories: the model's, or with masters its entries in float32.
  const plan::Layout& layout() const { return layout_; }

  // How many of the memories are a rule's; null without masters.
  std::size_t count() const { return memories_.size() - (has_masters_ ? 1 : 0); }
  const replica::FlatMemory* masters() const { return has_masters_ ? &memories_.back() : nullptr; }
  // Beside half parameters there may be others, which are their own masters.
  bool has_master(std::size_t entry) const;

  torch::Tensor view(std::size_t memory, std::size_t entry) const;
  // All of it, named such as "momentum/fc1.weight".
  std::vector<NamedTensor> tensors();

  // Re-reads masters from parameters that were changed from outside.
  void refresh_masters();
  // They are what the parameters are of, as after a checkpoint has been read.
  void trust_masters();

 private:
  void take_memories();

  replica::Parts& model_;
  std::vector<std::string> names_;
  bool has_masters_;
  plan::Layout layout_;
  std::vector<replica::FlatMemory> memories_;
  std::vector<std::int64_t> versions_;  // of parameters after the last update; with masters
};

}  // namespace lockstep::optim
