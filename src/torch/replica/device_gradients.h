// Gradients on a GPU. Each stays where backward made it until somebody needs it in flat memory.
// That saves a kernel for each gradient: bring() moves all gradients of a bucket with one kernel,
// and an update can read gradients where they are.
//
//   part    of a bucket: what is reduced as one buffer (plan::Lot). A large gradient is a part
//           alone
//   own     said of a gradient whose memory nobody else has: has_own_memory() of tensors.h. Only
//           such a gradient may be reduced where it is, because the average overwrites it
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

// The kernel that copies the gradients of a bucket into flat memory. Its tables are shared by all
// banks of a model.
//
// Threads:   one caller at a time.
// Blocking:  never; what it does is queued on LibTorch's current stream.
// Failure:   Unavailable when the device fails.
// Ownership: owns its tables.
class Gather {
 public:
  virtual ~Gather() = default;

  struct Into {
    const FlatMemory& memory;
    DType dtype;  // of the bucket's entries in this memory
    bool wide;    // the memory has the wide layout of the layout that this was made with
  };
  // `gradients` has one pointer for each entry of the bucket: null for no gradient, and
  // flat::left_alone() for an entry that must not be written. With `adds` g is added to the entry;
  // without, 0 + g is written.
  virtual void run(const plan::Bucket& bucket, const std::vector<const void*>& gradients,
                   const Into& into, bool adds) = 0;
};

// For a GPU. Null in a build without CUDA.
std::shared_ptr<Gather> make_gather(const plan::Layout& layout, const plan::Pieces& pieces,
                                    Device device);

// Threads, Blocking, Failure, Ownership: as FlatGradients. All work is queued on the current
// stream.
class DeviceGradients : public FlatGradients {
 public:
  DeviceGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                  FlatMemory memory, std::vector<plan::Bucket> buckets,
                  std::shared_ptr<Gather> gather);

  void reset() override { clear(); }
  // Moves nothing: only finds out whether the gradient is own.
  void adopt(std::size_t entry, const torch::Tensor& incoming = {}) override;
  void settle() override;
  void complete() override {}
  void stay(const std::vector<bool>&) override {}
  std::optional<std::vector<bool>> undefined() const override { return std::nullopt; }
  void look_again() override;
  void add(const FlatGradients& right, const std::vector<plan::Bucket>& buckets) override;
  void take(const FlatGradients& sums) override;

  // Moves all gradients of a bucket into flat memory.
  void bring(const plan::Bucket& bucket);

  // The same, except for gradients that are a part alone, own, and ordered in memory as the entry.
  // Those stay outside. Returns what to reduce.
  struct Brought {
    std::vector<Buffer> buffers;         // one for each part
    std::vector<torch::Tensor> outside;  // keep them until they have been reduced
  };
  Brought bring_small(const plan::Bucket& bucket, const std::vector<plan::Lot>& lots);

  // Whether a gradient that adopt() has seen is own.
  bool owns(std::size_t entry) const;
  // A graph was replayed, and has written this gradient again.
  void set(std::size_t entry, const torch::Tensor& grad, bool own);

  // The address of each gradient, by entry. Nullopt if a kernel cannot read one of them: it is
  // undefined, hidden, or ordered differently in memory than its entry.
  std::optional<std::vector<const void*>> whereabouts() const;

  // The elements of a bucket in flat memory.
  torch::Tensor values(const plan::Bucket& bucket) const;

 private:
  // Weak, so that it keeps no memory. A plain address would not do: LibTorch may give it to another
  // tensor later.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Made {
    std::optional<WeakTensor> tensor;  // what backward made
    bool own = false;
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
