// Seeds for everything random: dropout masks of a shard, augmentation of a sample.
//
// They depend on the job and on what is seeded alone: a shard draws the same numbers on any worker, and again when it is
// repeated after a fault; a sample looks the same wherever it is read. LibTorch's CPU generator looks at the low 32 bits
// only, so each of them depends on every bit of the input.
#pragma once

#include <cstdint>

namespace lockstep::plan {

// Of a shard in one of the updates that are made with a batch.
std::uint32_t shard_seed(std::uint64_t job_seed, std::int64_t step, int shard, int phase = 0);

// Of a sample in an epoch; numbers of their own, apart from those of shards.
std::uint64_t sample_seed(std::uint64_t job_seed, std::int64_t epoch, std::int64_t index);

}  // namespace lockstep::plan
