// Gradients on a GPU: each stays where backward has made it until it is wanted in its place.
//
// bring() moves all of a bucket at once, and an update may read a gradient where it is. bring_small() leaves those where
// they are that are lots of their own (plan/buckets.h), to be reduced there.
//
//   own     memory of a gradient that nobody else has: has_own_memory() of tensors.h
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "torch/replica/flat_gradients.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Gradients of a GPU from where backward has made them into flat memory: one kernel for a bucket.
//
// Threads:   one caller at a time.
// Blocking:  never; what it does is queued on LibTorch's current stream.
// Failure:   Unavailable when the device fails.
// Ownership: of its tables.
class Gather {
 public:
  virtual ~Gather() = default;

  // Where they go: memory in the layout that this was made with, or in that of its sums, `wide`; the bucket's entries are
  // of `dtype` there.
  struct Into {
    const FlatMemory& memory;
    DType dtype;
    bool wide;
  };
  // `gradients` are those of the bucket's entries, null for none, flat::left_alone() for one whose place is not touched;
  // 0 + g goes there, or g is added to what is there.
  virtual void run(const plan::Bucket& bucket, const std::vector<const void*>& gradients,
                   const Into& into, bool adds) = 0;
};

// Null for the CPU.
std::shared_ptr<Gather> make_gather(const plan::Layout& layout, const plan::Pieces& pieces,
                                    Device device);

// Threads, Blocking, Failure, Ownership: as FlatGradients. What it does is queued on the current stream.
class DeviceGradients : public FlatGradients {
 public:
  DeviceGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                  FlatMemory memory, std::vector<plan::Bucket> buckets,
                  std::shared_ptr<Gather> gather);

  void reset() override { clear(); }
  // Only finds out whether the gradient lies in own memory.
  void adopt(std::size_t entry, const torch::Tensor& incoming = {}) override;
  void settle() override;
  void stay() override {}
  void look_again() override;
  void add(const FlatGradients& right, const std::vector<plan::Bucket>& buckets) override;
  void take(const FlatGradients& sums) override;

  // The gradients of a bucket are in their places after what is queued on the current stream.
  void bring(const plan::Bucket& bucket);

  // The same but for gradients that are a lot of their own and lie in own memory, as their place is laid out: these stay
  // outside. Then what is to be reduced of the bucket, one for each lot.
  struct Brought {
    std::vector<Buffer> buffers;
    std::vector<torch::Tensor> outside;  // to be kept until they have been reduced
  };
  Brought bring_small(const plan::Bucket& bucket, const std::vector<plan::Lot>& lots);

  // Whether a gradient that adopt() has seen lies in own memory; and one that a graph has made again.
  bool owns(std::size_t entry) const;
  void set(std::size_t entry, const torch::Tensor& grad, bool own);

  // Where each gradient is, by entry; nothing if one of them is neither in its place nor as its place is laid out.
  std::optional<std::vector<const void*>> whereabouts() const;

  // The elements of a bucket, in their places.
  torch::Tensor values(const plan::Bucket& bucket) const;

 private:
  // Keeps no memory, and yet no other tensor can be taken for it.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Made {
    std::optional<WeakTensor> tensor;  // by backward
    bool own = false;                  // and its memory is
  };
  bool is_made(std::size_t entry, const torch::Tensor& grad) const override;
  bool stays(std::size_t entry) const;
  void bring_alone(std::size_t entry);
  void bring_all_but(const plan::Bucket& bucket, const std::vector<bool>& stays);

  std::vector<plan::Bucket> buckets_;
  std::shared_ptr<Gather> gather_;
  std::vector<Made> made_;  // by entry
};

}  // namespace lockstep::replica
