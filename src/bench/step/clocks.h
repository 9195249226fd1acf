// How long steps take: of a loop, and of a Trainer.
#pragma once

#include <lockstep/trainer.h>
#include <lockstep/world.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/step/job.h"

namespace lockstep::bench {

// The milliseconds of each step. Collective: workers agree on the warm-up, on the number of steps
// and on the time of the first step.
std::vector<double> timed(const StepJob& job, World& world, const std::function<void()>& step);

// The steps that a loop of the job must be ready for, with its warm-up. On a CPU its clock ends it.
std::int64_t most_steps(const StepJob& job);

// Measures when the steps of a Trainer end, and says when there are enough.
class TrainerClock {
 public:
  virtual ~TrainerClock() = default;
  virtual bool enough_after(const StepRecord& record) = 0;  // called once for each step
  virtual std::vector<double> milliseconds() = 0;
};

std::unique_ptr<TrainerClock> make_clock(const StepJob& job, World& world);

}  // namespace lockstep::bench
