// Which samples an epoch visits, in which order, and which of them a shard gets: PyTorch's
// DistributedSampler, reproduced without LibTorch.
//
//   order       torch.randperm(n) under the seed `seed + epoch`, or 0 … n−1 without shuffling
//   remainder   where the shards do not divide n: the order is padded from its own head (cycled if
//               the shards are more than the samples), cut, or kept as it is
//   share       entries s, s + S, s + 2S … of the order belong to shard s
//
// Only the low 32 bits of `seed + epoch` count, as in LibTorch's CPU generator.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::plan {

// What to do with the entries that the shards do not divide.
enum class Remainder : std::uint8_t {
  kKeep,  // every sample exactly once per epoch; shards differ by at most one sample
  kPad,   // DistributedSampler(drop_last=False): up to S − 1 samples are visited again
  kDrop,  // DistributedSampler(drop_last=True): up to S − 1 are left out, other ones each epoch
};

struct SamplerOptions {
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;
  Remainder remainder = Remainder::kPad;
};

// Above it versions of PyTorch disagree on torch.randperm (newer ones draw 64 bits there), so more
// are not shuffled: no order could be called PyTorch's.
inline constexpr std::int64_t kMostShuffledSamples = 214'748'363;

// torch.randperm(n) after torch.manual_seed(seed), on the CPU. BadInput for n above
// kMostShuffledSamples.
std::vector<std::uint32_t> random_permutation(std::int64_t n, std::uint64_t seed);

// The order of one epoch, before the remainder is treated. Costs 4 bytes a sample when shuffled,
// else nothing.
//
// Threads:   immutable after construction; any thread may read.
// Blocking:  never.
// Failure:   the constructor throws BadInput for no samples or too many, or a negative epoch.
// Ownership: a value.
class EpochOrder {
 public:
  EpochOrder(const SamplerOptions& options, std::int64_t epoch);

  std::int64_t samples() const { return samples_; }

  // The sample at a position; positions from samples() on begin again at the head, which is
  // padding.
  std::int64_t sample_at(std::int64_t position) const;

 private:
  std::int64_t samples_ = 0;
  std::vector<std::uint32_t> permutation_;  // empty: the identity
};

// How many entries an epoch has once the remainder has been treated.
std::int64_t epoch_entries(const SamplerOptions& options, int shards);

// How many of `entries` entries belong to a shard: entries s, s + S, s + 2S …
std::int64_t shard_entries(std::int64_t entries, int shard, int shards);

// The samples of one shard in one epoch, in order. With kPad or kDrop this is
// list(DistributedSampler(dataset, shards, shard, shuffle, seed, drop_last)) after
// set_epoch(epoch).
std::vector<std::int64_t> shard_samples(const SamplerOptions& options, std::int64_t epoch,
                                        int shard, int shards);

// For evaluation: samples s, s + S, … of the data set as it stands. Over all shards each sample
// comes exactly once, so a metric summed over shards is that of the data set; a shard may get none.
std::vector<std::int64_t> evaluation_samples(std::int64_t samples, int shard, int shards);

}  // namespace lockstep::plan
