// Which samples shard s of step t reads, directly for any t. Nothing is counted from the first step
// on, so a job can go on at any step, on any number of workers.
//
//   entries         of an epoch: the sampler's order, its remainder kept, padded or dropped
//   global batch    entries [i·B, (i+1)·B) of the epoch, i being the step inside the epoch
//   shard's batch   entries s, s + S, s + 2S … of the global batch
//   last batch      if B does not divide the epoch: shorter (the numbers n_s of samples of the
//                   shards differ by at most one and may be 0), or left out
//
// B is a multiple of S. So entry p of shard s is entry p·S + s of the epoch. With S = N the batches
// are exactly those of PyTorch's DataLoader over a DistributedSampler on rank s, with batch_size =
// B / S.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plan/sampler.h"

namespace lockstep::plan {

enum class LastBatch : std::uint8_t {
  kKeep,  // DataLoader(drop_last=False)
  kDrop,  // DataLoader(drop_last=True)
};

// What a job reads. All of it decides the result.
struct DataOptions {
  std::int64_t samples = 0;
  std::int64_t global_batch = 0;  // B
  int shards = 1;                 // S, a divisor of B
  std::uint64_t seed = 0;
  bool shuffle = true;
  Remainder remainder = Remainder::kKeep;  // PyTorch pads; weights of shards make it needless
  LastBatch last_batch = LastBatch::kKeep;
  std::shared_ptr<const WeightedDraws> weights = nullptr;  // null: an epoch visits every sample
};

struct Position {
  std::int64_t epoch = 0;
  std::int64_t step_in_epoch = 0;
  std::int64_t first_entry = 0;  // of the epoch
  std::int64_t entries = 0;      // B, or less for a short last batch
  bool operator==(const Position&) const = default;
};

// How many shards a job has if it does not say: 8, or the largest divisor of the global batch below
// 8.
int default_shards(std::int64_t global_batch);

// Where every step of a job reads. A pure function of the options. It only remembers the order of
// two epochs, so that reading ahead over the end of an epoch shuffles each epoch once.
//
// Threads:   one caller at a time; a copy for each thread costs one more shuffle per epoch.
// Blocking:  never; the first call of an epoch takes the time of a shuffle.
// Failure:   the constructor throws BadInput for options that give no batch; calls throw it for a
//            negative step or a shard that does not exist.
// Ownership: a value; 4 bytes per sample for each epoch that it remembers.
class Batches {
 public:
  explicit Batches(const DataOptions& options);

  const DataOptions& options() const { return options_; }
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }

  Position position(std::int64_t step) const;

  // The number of samples n_s of a shard, and its weight w_s = n_s · S / B: exactly 1 for a full
  // shard.
  std::int64_t count(std::int64_t step, int shard) const;
  double weight(std::int64_t step, int shard) const;

  // The samples of a shard, in order; n_s of them. And their positions in the order of the epoch.
  std::vector<std::int64_t> samples(std::int64_t step, int shard);
  std::vector<std::int64_t> entries(std::int64_t step, int shard) const;

 private:
  struct Remembered {
    std::int64_t epoch;
    EpochOrder order;
  };
  const EpochOrder& order_of(std::int64_t epoch);

  DataOptions options_;
  std::int64_t entries_per_epoch_ = 0;
  std::int64_t steps_per_epoch_ = 0;
  std::array<std::optional<Remembered>, 2> remembered_;  // for even and odd epochs
};

}  // namespace lockstep::plan
