#include "plan/seed.h"

#include "base/hash.h"

namespace lockstep::plan {

std::uint32_t shard_seed(std::uint64_t job_seed, std::int64_t step, int shard) {
  // One mix between any two inputs: (step, shard) and (shard, step) must not meet.
  const std::uint64_t of_job = base::mix64(job_seed);
  const std::uint64_t of_step = base::mix64(of_job ^ static_cast<std::uint64_t>(step));
  const std::uint64_t of_shard = base::mix64(of_step ^ static_cast<std::uint64_t>(shard));
  return static_cast<std::uint32_t>(of_shard >> 32);
}

}  // namespace lockstep::plan
