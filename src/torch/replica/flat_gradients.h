// All gradients of a model in one memory, in the fixed layout.
//
//   attached   param.grad views the entry
//   cleared    param.grad is undefined. Backward makes a new gradient g and need not add to zeros.
//              adopt() then writes 0 + g to the entry: the same bits as adding to zeros
//   hidden     param.grad is undefined, too, but the entry counts: adopt() adds g to it
//   averaged   param.grad views the average, which is not in this memory: where workers share memory
//              it is in one memory of the host (HostCopy). Only in the front, after a reduction
//   wide       the layout gives the entry a wider type than its parameter has, so that sums are not
//              rounded on the way. Such an entry is hidden, because param.grad cannot view it
//
// On a GPU gradients stay where backward made them as long as they can: device_gradients.h.
//
// With parity (divergence/watch.h) only adopt(), settle() and add() write to the memory. In a drop-in
// loop, which has none, zero() does, too.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/data_parallel.h>

#include <optional>
#include <vector>

#include "flat/parity.h"
#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "torch/divergence/watch.h"
#include "torch/replica/flat_memory.h"
#include "torch/replica/host_copy.h"

namespace lockstep::replica {

// One bank. Owned by Banks.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   BadInput from check().
// Ownership: the memory lives as long as any gradient that views it.
class FlatGradients {
 public:
  // `parameters` in registration order. The layout may have float32 for those of a half type.
  FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                FlatMemory memory);
  virtual ~FlatGradients() = default;
  FlatGradients(const FlatGradients&) = delete;
  FlatGradients& operator=(const FlatGradients&) = delete;

  // Works with parity from now on. `parities` has one word for each piece, where other workers can
  // read it. `worker` is this worker's rank: a fault is noted as its own.
  void watch(FlatMemory parities, const plan::Pieces& pieces, divergence::FirstFault& faults,
             int worker);
  void unwatch() { watched_.reset(); }
  bool watched() const { return watched_.has_value(); }
  // Of another worker, if memory is shared.
  const flat::Parity* parities_of(int worker) const {
    return reinterpret_cast<const flat::Parity*>(watched_->parities.of(worker));
  }

  // Averages are in this memory of the host from now on; null: in this object's own.
  void keep_averages(std::unique_ptr<HostCopy> averages);
  HostCopy* averages() const { return averages_.get(); }
  // Where an update reads averages, after stay().
  const FlatMemory& averaged() const { return averages_ ? averages_->seen() : memory_; }

  // After a reduction: makes all gradients averaged; attached, if the averages are not elsewhere.
  void attach_averages();

  // Makes all gradients attached, cleared or hidden. attach() hides wide ones.
  void attach();
  void clear();
  void hide();

  // Before the first backward: zeros that param.grad views. On a GPU gradients are undefined.
  virtual void reset() { settle(); }

  // Moves a gradient that backward made elsewhere into the memory. Called by its hook, with what
  // the hook got as `incoming`. BadInput from check().
  virtual void adopt(std::size_t entry, const torch::Tensor& incoming = {});

  // Afterwards all gradients are in the memory, and missing ones are zero. On a GPU that holds for
  // what is queued later on the current stream.
  virtual void settle();

  // Before a reduction: afterwards it finds all gradients, and missing ones are zero. On the CPU
  // they are in the memory. On a GPU they stay where they are.
  virtual void complete() { settle(); }

  // The same before an update, which reads averaged(). Absent gradients may stay undefined.
  virtual void stay(const std::vector<bool>& absent);

  // Call it before gradients are used that the program has seen. It may have swapped two, or replaced
  // one by a view of itself. Afterwards each is in the memory of its own entry, or in none.
  void untangle();

  // By entry: whether a gradient is undefined, and no bank holds it. Nothing on a GPU: there it
  // counts as zero.
  virtual std::optional<std::vector<bool>> undefined() const;

  // Makes a gradient, which is undefined, zero for reductions and norms.
  void zero(std::size_t entry);

  // Call it outside of a pass, before gradients are used: the program may have copied a reference
  // to a gradient since.
  virtual void look_again() {}

  // Adds another bank. Both are settled. Both work with parity, or neither does.
  virtual void add(const FlatGradients& right, const std::vector<plan::Bucket>& buckets);

  // Copies another bank, and rounds where that one is wider. Both are settled.
  virtual void take(const FlatGradients& sums);

  // BadInput, naming the parameter and the likely reason, if its gradient cannot be moved in.
  void check(std::size_t entry) const;

  Buffer bucket(const plan::Bucket& bucket) const;

  // LibTorch's count of writes to a gradient that is in the memory, or that adopt() has seen. -1
  // for any other gradient, which Lockstep knows nothing of.
  std::int64_t version(std::size_t entry) const;
  std::vector<std::int64_t> versions() const;

  const FlatMemory& memory() const { return memory_; }

 protected:
  // One parameter, and its entry in the memory. param.grad is never the view itself but another
  // tensor of its memory: the program may give that other memory or strides (set_data(), t_()).
  struct Slot {
    plan::Entry entry;
    torch::Tensor parameter;
    torch::Tensor view;
    c10::ScalarType type;  // of the parameter when the replica was made
    bool hidden = false;
    torch::Tensor average;            // if averages are elsewhere: the average there
    torch::Tensor lent = {};          // param.grad, if the gradient is attached
    torch::Tensor lent_average = {};  // if it is averaged

    bool wide() const;
    void attach();
    void attach_average();
    void hide();
  };
  // Whether this is the gradient that adopt() saw last, outside of the memory. Only on a GPU.
  virtual bool is_made(std::size_t, const torch::Tensor&) const { return false; }
  void move_in(Slot& slot, const torch::Tensor& grad) const;
  static void move_past_caches(const Slot& slot, const torch::Tensor& grad);

  FlatMemory memory_;
  std::unique_ptr<HostCopy> averages_;
  bool wide_ = false;        // some entry is wide
  std::vector<Slot> slots_;  // by entry of the layout

 private:
  struct Watched {
    FlatMemory parities;
    divergence::GradientWatch watch;
  };
  void look_at(std::size_t entry);  // with parity: notes what the entry has now
  bool is_here(const torch::Tensor& grad) const;

  std::optional<Watched> watched_;
};

}  // namespace lockstep::replica
