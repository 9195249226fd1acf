// The flat memories for the gradients of a model. Backward adds to the one in use. A worker that
// hosts several shards needs several banks, because shards are added in the order of the tree, and
// not in the order in which they run.
//
//   front   the program's bank: param.grad views it
//   bank    for one shard, or for a sum over shards. Bank 0 is the front itself, except for sums of
//           half gradients. Those are kept in float32, so that they are not rounded on the way.
//           Then the front is beside the numbered banks
#pragma once

#include <lockstep/comm.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "torch/divergence/watch.h"
#include "torch/replica/flat_gradients.h"
#include "torch/replica/model.h"

namespace lockstep::replica {

// Owned by Parts.
//
// Threads:   one caller at a time.
// Blocking:  make(), watch() and find_absent(), which are collective; at most the Comm's timeout.
// Failure:   as FlatGradients.
// Ownership: shares the tensors; borrows the plan.
class Banks {
 public:
  // Makes gradients on the device of the model.
  using Factory = std::function<std::unique_ptr<FlatGradients>(const plan::Layout&, FlatMemory)>;
  Banks(const Model& model, const ModelPlan& plan, FlatMemory front, Factory factory);

  // The memories of banks of before, which the next make() shares again where it can.
  void take_spare(const Banks& before);

  // Makes banks until there are `count`. Sums of half gradients get the wide layout.
  enum class Holds : bool { kOneShard, kSums };
  void make(Comm& comm, int count, Holds holds);

  // Backward adds to this bank from now on. use() keeps what is in it, begin() clears it.
  void use(int bank);
  void begin(int bank);
  void add(int into, int from);

  // The front is in use from now on. use_gradients() leaves its values. use_averages() copies those
  // of bank 0, and rounds sums in float32.
  void use_gradients();
  void use_averages();

  // A reduction has written the averages to where front().averaged() says: param.grad has them.
  void show_averages();

  // Before an update: afterwards it finds all averages, and absent ones are undefined.
  void stay();

  // The next averages, and all later ones, are in one memory of the host, if workers can keep them
  // so. Collective; only the first call does anything.
  void share_averages(Comm& comm);

  // Keeps the parities of all banks until release(), to find bits that changed though nobody wrote
  // them. Only where every worker reads all gradients.
  void watch(Comm& comm, divergence::FirstFault& faults);
  // The front is in use again, without parities, and cleared.
  void release();

  FlatGradients& in_use() { return *all_[in_use_]; }
  const FlatGradients& in_use() const { return *all_[in_use_]; }
  FlatGradients& front() { return *all_.front(); }
  const FlatGradients& front() const { return *all_.front(); }
  FlatGradients& at(int bank) { return *all_[index_of(bank)]; }
  const FlatGradients& at(int bank) const { return *all_[index_of(bank)]; }
  int count() const { return static_cast<int>(all_.size() - index_of(0)); }
  const plan::Layout& layout() const { return wide_ ? *wide_ : plan_.layout; }  // of the banks
  const plan::Layout& front_layout() const { return plan_.layout; }

  // By entry: whether this worker has a gradient, in `reached` or in param.grad. Numbers and no
  // bools, so that they can be reduced.
  std::vector<std::uint8_t> present(const std::vector<bool>& reached) const;
  // As DDP's find_unused_parameters: if one worker has a gradient, all get the average. If no
  // worker has one, it is absent: it stays undefined, and updates leave its parameter alone.
  // Collective.
  void find_absent(Comm& comm, std::vector<std::uint8_t> has);
  // The same without a message, if all workers know the answer already.
  void set_absent(std::vector<bool> absent) { absent_ = std::move(absent); }
  void hide_absent();
  void forget_absent() { absent_.clear(); }
  const std::vector<bool>& absent() const { return absent_; }  // by entry; empty: none is absent

 private:
  FlatMemory next_memory(Comm& comm);
  std::size_t index_of(int bank) const { return static_cast<std::size_t>(bank) + (wide_ ? 1 : 0); }
  const torch::Tensor& parameter(std::size_t entry) const {
    return trained_[plan_.layout.entries()[entry].registered].tensor;
  }

  std::vector<NamedTensor> trained_;
  const ModelPlan& plan_;
  Factory factory_;
  bool shares_averages_ = false;                     // share_averages() was called
  std::optional<plan::Layout> wide_;                 // of the banks, if it differs from the front's
  std::vector<std::unique_ptr<FlatGradients>> all_;  // the front first
  std::vector<FlatMemory> spare_;
  std::size_t in_use_ = 0;
  std::vector<bool> absent_;
};

// How workers reach each other's gradients. Shared memory is read directly only if no other
// algorithm than `direct` was asked for.
Reach reach_of(const FlatMemory& gradients, Algorithm algorithm);

// A factory for the device of the model. It borrows model and plan.
Banks::Factory gradients_of(const Model& model, const ModelPlan& plan, Device device);

}  // namespace lockstep::replica
