// All gradients of a model in one memory, in the fixed layout.
//
// A gradient is there when param.grad views its place. After clear() it is undefined, so that backward makes a new one
// and need not add to zeros; adopt() then moves it in, as 0 + g, which is what adding would have given. After hide() it
// is undefined too, but adopt() adds to what is there, as backward would have.
//
// A layout may give a gradient a wider type than its parameter has, for sums that are not to be rounded on the way. It
// is there when it is hidden: param.grad cannot view it.
//
// On a GPU gradients stay where backward made them for as long as they can: device_gradients.h.
//
// Memory that is watched for changed bits (divergence/gradient_watch.h) is written by adopt(), settle() and add() alone.
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

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   BadInput from check().
// Ownership: the memory lives as long as any gradient that views it.
class FlatGradients {
 public:
  // `parameters` in registration order, as the layout numbers them; those of a half type may have float32 there.
  FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                FlatMemory memory);
  virtual ~FlatGradients() = default;
  FlatGradients(const FlatGradients&) = delete;
  FlatGradients& operator=(const FlatGradients&) = delete;

  // `parities` has one for each piece. A fault that is found is noted as this worker's.
  void watch(FlatMemory parities, const plan::Pieces& pieces, divergence::FirstFault& faults,
             int worker);
  void unwatch() { watched_.reset(); }
  bool watched() const { return watched_.has_value(); }
  // Another worker's where memory is shared.
  const flat::Parity* parities_of(int worker) const {
    return reinterpret_cast<const flat::Parity*>(watched_->parities.of(worker));
  }

  // Every parameter's gradient becomes a view of the memory, or is hidden where it is wider.
  void attach();

  void clear();
  void hide();

  // As a program expects it before its first backward: zeros, which param.grad views; on a GPU, nothing.
  virtual void reset() { settle(); }

  // Moves a gradient that backward has made elsewhere to its place. To be called by its hook, with what came in there.
  // BadInput, naming the parameter and the likely reason, for one that cannot be.
  virtual void adopt(std::size_t entry, const torch::Tensor& incoming = {});

  // All gradients are in their places after: those that nobody has made are zero. On a GPU, after what is queued on the
  // current stream.
  virtual void settle();

  // All gradients are where an update finds them: in their places; on a GPU, wherever they are.
  virtual void stay() { settle(); }

  // Outside of a pass: what was known of their memory may be so no more.
  virtual void look_again() {}

  // Adds another memory. Settled, both; both or none watched.
  virtual void add(const FlatGradients& right, const std::vector<plan::Bucket>& buckets);

  // Every gradient becomes that of another memory, rounded where that one is wider. Settled, both.
  virtual void take(const FlatGradients& sums);

  // BadInput, naming the parameter, if its gradient could not be moved in.
  void check(std::size_t entry) const;

  Buffer bucket(const plan::Bucket& bucket) const;

  // How often LibTorch has written to a gradient in its place, or to one that adopt() has seen; -1 for any other.
  std::int64_t version(std::size_t entry) const;
  std::vector<std::int64_t> versions() const;

  const FlatMemory& memory() const { return memory_; }

 protected:
  // A parameter, and its part of the memory.
  struct Slot {
    plan::Entry entry;
    torch::Tensor parameter;
    torch::Tensor view;
    c10::ScalarType type;  // of the parameter
    bool hidden = false;   // undefined, and yet part of the sum

    bool wide() const { return view.scalar_type() != type; }
    void attach();
    void hide();
  };
  // Whether the gradient of an entry was made by the last backward, outside of its place.
  virtual bool is_made(std::size_t, const torch::Tensor&) const { return false; }
  static void move_in(Slot& slot, const torch::Tensor& grad);

  FlatMemory memory_;
  bool wide_ = false;        // some of it is wider than its parameter
  std::vector<Slot> slots_;  // by entry of the layout

 private:
  struct Watched {
    FlatMemory parities;
    divergence::GradientWatch watch;
  };
  void look_at(std::size_t entry);

  std::optional<Watched> watched_;
};

}  // namespace lockstep::replica
