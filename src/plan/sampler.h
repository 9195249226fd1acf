// Which samples an epoch visits, in which order, and which of them a shard gets: PyTorch's
// DistributedSampler, reproduced without LibTorch.
//
//   order       torch.randperm(n) under the seed `seed + epoch`, or 0 … n−1 without shuffling, or
//               draws by weight (weighted.h)
//   remainder   if S does not divide n: the order is padded with its own first samples (repeatedly,
//               if there are more shards than samples), cut, or kept as it is
//   share       entries s, s + S, s + 2S … of the order belong to shard s
//
// Only the low 32 bits of `seed + epoch` count, as in LibTorch's CPU generator.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/weighted.h"

namespace lockstep::plan {

// What to do with the remainder.
enum class Remainder : std::uint8_t {
  kKeep,  // every sample exactly once per epoch; shards differ by at most one sample
  kPad,   // DistributedSampler(drop_last=False): up to S − 1 samples are read twice
  kDrop,  // DistributedSampler(drop_last=True): up to S − 1 are left out, others in each epoch
};

struct SamplerOptions {
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;
  Remainder remainder = Remainder::kPad;
  std::shared_ptr<const WeightedDraws> weights = nullptr;  // null: an epoch visits every sample
};

// For more samples, versions of PyTorch disagree on torch.randperm: newer ones draw 64 bits there.
// So there is no order that is PyTorch's, and more samples are not shuffled.
inline constexpr std::int64_t kMostShuffledSamples = 214'748'363;

// torch.randperm(n) after torch.manual_seed(seed), on the CPU. Throws BadInput for n above
// kMostShuffledSamples.
std::vector<std::uint32_t> random_permutation(std::int64_t n, std::uint64_t seed);

// How many entries the order of an epoch has, before the remainder is handled: samples, or draws.
std::int64_t order_length(const SamplerOptions& options);

// The order of one epoch, before the remainder is handled. Takes 4 bytes per sample if shuffled or
// drawn without replacement, else nothing.
//
// Threads:   immutable after construction; any thread may read.
// Blocking:  never.
// Failure:   the constructor throws BadInput for no samples, too many samples, or a negative epoch.
// Ownership: a value.
class EpochOrder {
 public:
  EpochOrder(const SamplerOptions& options, std::int64_t epoch);

  // The sample at a position. Positions from order_length() on are padding: they begin again with
  // the first sample; where samples are drawn with replacement, they are further draws.
  std::int64_t sample_at(std::int64_t position) const;

 private:
  struct Draws {
    std::shared_ptr<const WeightedDraws> weights;
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
  };
  std::int64_t length_ = 0;
  std::vector<std::uint32_t> permutation_;  // empty: the identity, or draws with replacement
  Draws draws_;
};

// How many entries an epoch has after the remainder was handled.
std::int64_t epoch_entries(const SamplerOptions& options, int shards);

// How many of `entries` entries belong to a shard: entries s, s + S, s + 2S …
std::int64_t shard_entries(std::int64_t entries, int shard, int shards);

// The samples of one shard in one epoch, in order. With kPad or kDrop this is
// list(DistributedSampler(dataset, shards, shard, shuffle, seed, drop_last)) after
// set_epoch(epoch).
std::vector<std::int64_t> shard_samples(const SamplerOptions& options, std::int64_t epoch,
                                        int shard, int shards);

// For evaluation: samples s, s + S, … of the data set in its own order. Over all shards each sample
// comes exactly once, so a metric that is summed over shards is that of the data set. A shard may
// get no samples.
std::vector<std::int64_t> evaluation_samples(std::int64_t samples, int shard, int shards);

}  // namespace lockstep::plan
