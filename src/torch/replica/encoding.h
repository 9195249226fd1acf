// How the gradients of a model are encoded: block by block, or as the factors of matrices (low_rank.h).
#pragma once

#include <lockstep/codec.h>
#include <lockstep/data_parallel.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

class Banks;
class Reduction;
enum class Reach : bool;
struct ModelPlan;

// What a codec does to the gradients of a model, and what it keeps from step to step. Owned by Parts.
//
// Threads:   one caller at a time.
// Blocking:  take_memory() and complete(), which are collective; at most the Comm's timeout.
// Failure:   BadInput from the constructor; Unavailable if there is too little memory.
// Ownership: shares the codec; borrows the layout.
class Encoding {
 public:
  virtual ~Encoding() = default;
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  const Codec& codec() const { return *codec_; }
  const plan::Layout& layout() const { return layout_; }
  bool keeps_state() const { return codec_->has_error_feedback(); }
  // The step from which on gradients are encoded.
  virtual std::int64_t begins_at() const { return 0; }

  // Error feedback of so many shards, zero at first. Another call with the same number does nothing; with another number it
  // is BadInput, because feedback would be lost. Collective.
  void take_memory(Comm& comm, int shards);
  // BadInput if there is error feedback: other workers do not have it.
  void check_may_move() const;

  // How workers reach each other's gradients, if they could reach them like this; and the reduction for that.
  virtual Reach reach(Reach possible) const { return possible; }
  virtual std::unique_ptr<Reduction> reduction(Reach reach, Comm& comm, Banks& banks,
                                               const ModelPlan& plan) = 0;

  // The most bytes that any worker sends, or receives, in a step by messages.
  virtual std::size_t busiest(const std::vector<plan::Bucket>& buckets, int shards,
                              int workers) const = 0;

  // Every worker has all of the state, not only that of its own shards and slices. Collective.
  virtual void complete(Comm& comm, const std::vector<plan::Bucket>& buckets) = 0;
  // What is kept from step to step; empty if nothing is.
  virtual std::vector<NamedTensor> state() const = 0;

 protected:
  // BadInput, naming it, for a parameter that no codec can have, and for options that contradict the codec.
  Encoding(const DataParallelOptions& options, const plan::Layout& layout);

  virtual void allocate(Comm& comm, int shards) = 0;
  int shards() const { return shards_; }  // 0 before take_memory()

 private:
  std::shared_ptr<const Codec> codec_;
  const plan::Layout& layout_;
  int shards_ = 0;
};

// Block by block (docs/decisions/0028-codecs-belong-to-shards.md):
//
//   a shard    sends C(g · factor + e), its part of the average, and keeps e' = what that has lost
//   the sum    of all shards, in the order of the tree, is the average a
//   everybody  gets C(a + f), and f' = what that has lost is kept
//
// C is encode and then decode; e and f are error feedback. Without it they are zero, and take no memory. All of it is
// defined by blocks and shards, so it does not matter which worker does it.
//
// A class for each device computes: HostBlockEncoding, and DeviceBlockEncoding (device_encoding.h).
class BlockEncoding : public Encoding {
 public:
  std::size_t busiest(const std::vector<plan::Bucket>& buckets, int shards,
                      int workers) const override;
  void complete(Comm& comm, const std::vector<plan::Bucket>& buckets) override;
  // Error feedback, as shard3/fc1.weight and average/fc1.weight.
  std::vector<NamedTensor> state() const override;

  // Passed as the shard, to encode the average.
  int average() const { return shards(); }
  // The blocks of a bucket, in the parts of which every worker owns some (own_blocks()). Sent one after the other on a CPU: so the
  // first travels while the next is encoded. On a GPU there is one.
  virtual std::vector<plan::BlockRange> parts_of(const plan::Bucket& bucket, int workers) const = 0;
  // Of these blocks, encoded.
  std::size_t bytes(plan::BlockRange blocks) const { return at_[blocks.end] - at_[blocks.begin]; }

 protected:
  using BytesOf = std::function<std::size_t(std::size_t elements)>;  // of an encoded block
  BlockEncoding(const DataParallelOptions& options, const plan::Layout& layout, Device device,
                const BytesOf& bytes_of);

  void allocate(Comm& comm, int shards) override;
  std::size_t at(std::size_t block) const { return at_[block]; }
  // In the layout; null without error feedback.
  std::byte* lost(int shard) const;

 private:
  Device device_;
  std::vector<std::size_t> at_;     // by block, and the end: where its bytes begin
  std::optional<FlatMemory> lost_;  // one layout for each shard, then one for the average
};

// Threads:   encode() and decode() from any, each block of a shard once at a time.
class HostBlockEncoding : public BlockEncoding {
 public:
  HostBlockEncoding(const DataParallelOptions& options, const plan::Layout& layout);

  std::unique_ptr<Reduction> reduction(Reach reach, Comm& comm, Banks& banks,
                                       const ModelPlan& plan) override;
  std::vector<plan::BlockRange> parts_of(const plan::Bucket& bucket, int workers) const override;

  // Encodes a block in place: afterwards it has the decoded elements. Its bytes go to `bytes`, if that is not null.
  void encode(int shard, std::size_t block, double factor, float* elements, std::byte* bytes);
  // The same for the blocks of a flat memory, on LibTorch's threads.
  void encode(int shard, plan::BlockRange blocks, double factor, std::byte* memory,
              std::byte* bytes);
  void decode(plan::BlockRange blocks, const std::byte* bytes, std::byte* memory) const;
  void decode(std::size_t block, const std::byte* bytes, float* elements) const;
};

// Null without a codec. BadInput for one that GPUs do not know, if the model is on a GPU. (device_choice.cpp)
std::unique_ptr<Encoding> make_encoding(const DataParallelOptions& options,
                                        const std::vector<NamedTensor>& trained,
                                        const plan::Layout& layout, Device device);

// A shard's row of a memory that has one layout for each shard: everybody gets it from the shard's worker. Collective.
void share_shards(Comm& comm, const FlatMemory& memory, const plan::Layout& layout, int shards);

// The blocks of a bucket, and those of a part that a worker sums and sends on, where gradients go by messages.
plan::BlockRange blocks_of(const plan::Layout& layout, const plan::Bucket& bucket);
plan::BlockRange own_blocks(plan::BlockRange blocks, int worker, int workers);

}  // namespace lockstep::replica
