// The training loops that `bench step` compares.
#pragma once

#include <lockstep/world.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/step/bench_job.h"

namespace lockstep::bench {

struct StepTimes {
  std::vector<double> ms;  // one for each step of this worker
  double state_mb = 0;     // parameters and optimizer state of this worker; not known on cuda

  // Of the last step, if the system has a replica.
  std::optional<std::int64_t> buckets;
  std::optional<std::int64_t> buckets_before_end;  // reduced before the last gradient was there

  // Of all steps, if a Trainer ran them.
  std::optional<std::int64_t> graph_shards;  // shards that ran as CUDA graphs
  std::optional<std::int64_t> eager_shards;
  std::string eager_reason;  // why some that could have did not; empty: there were none
};

// Runs the job's system. Collective: workers agree on the warm-up, on the number of steps and on
// the time of the first step. In `plain` and `plain-flat` they do not talk to each other after
// that.
StepTimes run_steps(const StepJob& job, World& world);

}  // namespace lockstep::bench
