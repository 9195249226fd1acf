// The state of an optimizer, in flat memories. Where workers share memory there is one copy per
// host, because each element is updated by one worker only.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch/optim/rules.h"
#include "torch/replica/parts.h"

namespace lockstep::optim {

// Parameters of half types have float32 masters. Updates compute on the masters, and round them to
// the parameters. They follow the rules' memories, named "master". Owned by Trained.
//
// Threads:   one caller at a time.
// Blocking:  the constructor, which is collective.
// Failure:   Unavailable if there is too little memory.
// Ownership: owns the memories; borrows the model.
class StateMemory {
 public:
  // Takes a memory for each name, one value per element.
  StateMemory(replica::Parts& model, const StateNames& names);

  // Takes a memory for an average of the weights, "ema", and copies the weights there. Parameters of
  // half types have an average of their masters. Collective.
  void add_average();
  // Null if there is none.
  const replica::FlatMemory* average() const { return has_average_ ? &memories_.back() : nullptr; }
  torch::Tensor average_of(std::size_t entry) const { return view(memories_.size() - 1, entry); }

  // The model has gone to other workers. Takes new memories, with the values of the rank that the
  // model has its values from. Collective.
  void rebind();  // all but the average
  void rebind_average();

  const std::vector<replica::FlatMemory>& memories() const { return memories_; }
  // Of the memories: the model's layout, or with masters its wide layout.
  const plan::Layout& layout() const { return layout_; }

  // How many of the memories belong to the rules, and which of a rule's states each of them is.
  std::size_t count() const { return states_.size(); }
  std::size_t state_of(std::size_t memory) const { return states_[memory]; }
  // Null if there are none.
  const replica::FlatMemory* masters() const {
    return has_masters_ ? &memories_[count()] : nullptr;
  }
  // False for parameters that are not of a half type: they need none.
  bool has_master(std::size_t entry) const;

  torch::Tensor view(std::size_t memory, std::size_t entry) const;
  // All state as tensors with names such as "momentum/fc1.weight".
  std::vector<NamedTensor> tensors();

  // Re-reads masters from parameters that were changed from outside: those elements of a master that
  // are not rounded to what the parameter has.
  void refresh_masters();
  // The masters belong to the parameters as they are now: after an update, or after a checkpoint
  // was read. refresh_masters() then leaves them.
  void trust_masters();

 private:
  void take_memories();
  void take_memory();
  void fill(const replica::FlatMemory& memory, const replica::FlatMemory& before);

  replica::Parts& model_;
  std::vector<std::string> names_;   // by memory
  std::vector<std::size_t> states_;  // by memory, without masters and average
  bool has_masters_;
  bool has_average_ = false;
  plan::Layout layout_;
  std::vector<replica::FlatMemory> memories_;
  std::vector<std::int64_t> versions_;  // of parameters at trust_masters(), by entry; -1: never
};

}  // namespace lockstep::optim
