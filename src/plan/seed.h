// Seeds for everything random: dropout masks of a shard, augmentation of a sample.
//
// They depend only on the job and on what is seeded. A shard draws the same numbers on any worker,
// and when a step is run again. A sample is the same on any worker that reads it. LibTorch's CPU
// generator uses only the low 32 bits, so each of these depends on every bit of the input.
#pragma once

#include <cstdint>

namespace lockstep::plan {

// The seed of a shard in one phase of a step.
std::uint32_t shard_seed(std::uint64_t job_seed, std::int64_t step, int shard, int phase = 0);

// The seed of a sample in an epoch. It is independent of the seeds of shards.
std::uint64_t sample_seed(std::uint64_t job_seed, std::int64_t epoch, std::int64_t index);

// 64 random bits that decide a draw by weight (weighted.h). They are independent of all seeds.
std::uint64_t draw_number(std::uint64_t job_seed, std::int64_t epoch, std::int64_t position);

// The seed of the sample at a position of an epoch, where a sample may come several times: it is
// another one each time.
std::uint64_t drawn_sample_seed(std::uint64_t job_seed, std::int64_t epoch, std::int64_t position);

// The seed of one pass over the stream of a shard.
std::uint64_t stream_seed(std::uint64_t job_seed, std::int64_t epoch, int shard, std::int64_t pass);

}  // namespace lockstep::plan
