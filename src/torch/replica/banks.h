// Memories for the gradients of a model, a bank each: backward adds to the one in use. A worker that hosts several shards
// needs some of them, since shards are added up in the order of the tree and not in the order in which they run.
//
//   front   the user's: what param.grad views
//   bank    of a shard, or of a sum over shards. The first is the front itself, unless sums in a parameter's own type
//           would be rounded on the way: half gradients of several shards are added up in float32, and all banks are apart
#pragma once

#include <lockstep/comm.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "torch/divergence/watch.h"
#include "torch/replica/flat_gradients.h"
#include "torch/replica/model.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  make(), watch() and find_absent(), which are collective; at most the Comm's timeout.
// Failure:   as FlatGradients.
// Ownership: shares the tensors; borrows the plan.
class Banks {
 public:
  // Gradients where the model is: on the host or on a GPU.
  using Factory = std::function<std::unique_ptr<FlatGradients>(const plan::Layout&, FlatMemory)>;
  Banks(const Model& model, const ModelPlan& plan, FlatMemory front, Factory factory);

  enum class Holds : bool { kOneShard, kSums };
  void make(Comm& comm, int count, Holds holds);

  // Backward adds to a bank from here on: to what is there, or from nothing.
  void use(int bank);
  void begin(int bank);
  void add(int into, int from);

  // The front from here on, which is what it was, or the averages that were reduced into the first bank: sums in float32
  // are rounded here.
  void use_gradients();
  void use_averages();

  // Watches all banks for bits that change on their own, until release(): param.grad is hidden while a shard adds to a
  // bank. Only where every worker reads all gradients.
  void watch(Comm& comm, divergence::FirstFault& faults);
  bool watched() const { return all_.back()->watched(); }
  // Back to the front, unwatched and cleared.
  void release();

  FlatGradients& in_use() { return *all_[in_use_]; }
  const FlatGradients& in_use() const { return *all_[in_use_]; }
  FlatGradients& front() { return *all_.front(); }
  const FlatGradients& front() const { return *all_.front(); }
  FlatGradients& at(int bank) { return *all_[index_of(bank)]; }
  const FlatGradients& at(int bank) const { return *all_[index_of(bank)]; }
  int count() const { return static_cast<int>(all_.size() - index_of(0)); }
  const plan::Layout& layout() const { return wide_ ? *wide_ : plan_.layout; }

  // By entry, as numbers that can be reduced: whether this worker has a gradient; `reached`: from some pass.
  std::vector<std::uint8_t> present(const std::vector<bool>& reached) const;
  // As DDP's find_unused_parameters: a gradient that one worker has is everybody's; one that nobody has stays undefined,
  // and updates leave its parameter alone.
  void find_absent(Comm& comm, std::vector<std::uint8_t> has);
  void hide_absent();
  void forget_absent() { absent_.clear(); }
  const std::vector<bool>& absent() const { return absent_; }  // by entry; empty: none is

 private:
  std::size_t index_of(int bank) const { return static_cast<std::size_t>(bank) + (wide_ ? 1 : 0); }
  const torch::Tensor& parameter(std::size_t entry) const {
    return trained_[plan_.layout.entries()[entry].registered].tensor;
  }

  std::vector<NamedTensor> trained_;
  const ModelPlan& plan_;
  Factory factory_;
  std::optional<plan::Layout> wide_;  // of the banks, where it is another than the front's
  std::vector<std::unique_ptr<FlatGradients>> all_;  // the front first
  std::size_t in_use_ = 0;
  std::vector<bool> absent_;
};

// How the workers of a Comm reach memory like this one, with the algorithm that was asked for.
Reach reach_of(const FlatMemory& gradients, Algorithm algorithm);

// Makes gradients of a model where it is. The factory borrows both.
Banks::Factory gradients_of(const Model& model, const ModelPlan& plan, Device device);

}  // namespace lockstep::replica
