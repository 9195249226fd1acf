// A seed for everything random that one shard does in one step: dropout masks, augmentation.
//
// It depends on the job, the step and the shard alone, so a shard draws the same numbers on
// whichever worker it runs, and again when it is repeated after a fault. LibTorch's CPU generator
// looks at the low 32 bits only, so each of them depends on every bit of the input.
#pragma once

#include <cstdint>

namespace lockstep::plan {

std::uint32_t shard_seed(std::uint64_t job_seed, std::int64_t step, int shard);

}  // namespace lockstep::plan
