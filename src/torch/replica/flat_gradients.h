// All gradients of a model in one memory, in the fixed layout.
//
// A gradient is there when param.grad views its place. After clear() it is undefined, so that backward makes a new one
// and need not add to zeros; adopt() then moves it in, as 0 + g, which is what adding would have given. After hide() it
// is undefined too, but adopt() adds to what is there, as backward would have.
//
// A layout may give a gradient a wider type than its parameter has, for sums that are not to be rounded on the way. It
// is there when it is hidden: param.grad cannot view it.
//
// On a GPU a gradient stays where backward has made it until it is wanted in its place: bring() moves all of a bucket at
// once, and an update may read it where it is. bring_small() leaves those where they are that are lots of their own
// (plan/buckets.h), to be reduced there.
//
//   own     memory of a gradient that nobody else has: has_own_memory() of tensors.h
//
// Watched memory keeps the parity (comm/core/parity.h) of every piece that was written, and whoever reads a piece finds
// out whether it has changed since. All writing then goes through adopt(), settle() and add().
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/data_parallel.h>

#include <optional>
#include <vector>

#include "comm/core/parity.h"
#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "torch/replica/fault.h"
#include "torch/replica/flat_memory.h"
#include "torch/replica/gather.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   BadInput from check().
// Ownership: the memory lives as long as any gradient that views it.
class FlatGradients {
 public:
  // `parameters` in registration order, as the layout numbers them; those of a half type may have float32 there.
  // `gather` is for memory of a GPU.
  FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                FlatMemory memory, std::shared_ptr<Gather> gather = nullptr);

  // `parities` has one for each piece. A fault that is found is noted as this worker's.
  void watch(FlatMemory parities, const plan::Pieces& pieces, FirstFault& faults, int worker);
  void unwatch() { parities_.reset(); }
  bool watched() const { return parities_.has_value(); }
  // Another worker's where memory is shared.
  const comm::Parity* parities_of(int worker) const {
    return reinterpret_cast<const comm::Parity*>(parities_->of(worker));
  }

  // Every parameter's gradient becomes a view of the memory, or is hidden where it is wider.
  void attach();

  void clear();
  void hide();

  // Moves a gradient that backward has made elsewhere to its place; on a GPU only finds out whether it lies in own memory.
  // To be called by its hook, with what came in there. BadInput, naming the parameter and the likely reason, for one that
  // cannot be.
  void adopt(std::size_t entry, const torch::Tensor& incoming = {});

  // All gradients are in their places after: those that nobody has made are zero.
  void settle();

  // On a GPU: the gradients of a bucket are in their places after what is queued on the current stream.
  void bring(const plan::Bucket& bucket);

  // On a GPU, the same but for gradients that are a lot of their own and lie in own memory, as their place is laid out:
  // these stay outside. Then what is to be reduced of the bucket, a piece for each lot.
  struct Brought {
    std::vector<Buffer> pieces;
    std::vector<torch::Tensor> outside;  // to be kept until they have been reduced
  };
  Brought bring_small(const plan::Bucket& bucket, const std::vector<plan::Lot>& lots);

  // Whether a gradient that adopt() has seen on a GPU lies in own memory; and one that a graph has made again.
  bool owns(std::size_t entry) const;
  // Outside of a pass: what somebody else holds now has no memory of its own any more.
  void recheck_owners();
  void set(std::size_t entry, const torch::Tensor& grad, bool own);

  // On a GPU: where each gradient is, by entry; nothing if one of them is neither in its place nor as its place is laid
  // out.
  std::optional<std::vector<const void*>> whereabouts() const;

  // Adds another memory that is watched, too. Settled, both.
  void add(const FlatGradients& right);

  // Every gradient becomes that of another memory, rounded where that one is wider. Settled, both.
  void take(const FlatGradients& sums);

  // BadInput, naming the parameter, if its gradient could not be moved in.
  void check(std::size_t entry) const;

  Buffer bucket(const plan::Bucket& bucket) const;

  // How often LibTorch has written to a gradient in its place, or to one that adopt() has seen; -1 for any other.
  std::int64_t version(std::size_t entry) const;
  std::vector<std::int64_t> versions() const;

  const FlatMemory& memory() const { return memory_; }
  bool on_device() const { return memory_.device().kind != DeviceKind::kCpu; }

 private:
  // Keeps no memory, and yet no other tensor can be taken for it.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Place {
    plan::Entry entry;
    torch::Tensor parameter;
    torch::Tensor view;
    c10::ScalarType type;                 // of the parameter
    bool hidden = false;                  // undefined, and yet part of the sum
    std::optional<WeakTensor> made = {};  // by backward, on a GPU
    bool own = false;                     // and its memory is

    bool wide() const { return view.scalar_type() != type; }
    bool is_made(const torch::Tensor& grad) const;
    void note_made(const torch::Tensor& grad, const torch::Tensor& incoming);
    bool stays() const;
    void attach();
    void hide();
  };
  void move_in(Place& place, const torch::Tensor& grad);
  void move_in_watched(std::size_t entry, const torch::Tensor& grad);
  void bring_alone(std::size_t entry);
  void bring_all_but(const plan::Bucket& bucket, const std::vector<bool>& stays);
  void look_at(std::size_t entry);
  void expect(std::size_t piece, comm::Parity seen) const;
  template <typename Body>
  void for_each_piece(std::size_t entry, const Body& body) const;
  comm::Parity* parities() const { return reinterpret_cast<comm::Parity*>(parities_->data()); }

  FlatMemory memory_;
  bool wide_ = false;  // some of it is wider than its parameter
  std::shared_ptr<Gather> gather_;
  std::optional<FlatMemory> parities_;
  const plan::Pieces* pieces_ = nullptr;
  FirstFault* faults_ = nullptr;
  int worker_ = 0;
  std::vector<Place> places_;  // by entry of the layout
};

}  // namespace lockstep::replica
