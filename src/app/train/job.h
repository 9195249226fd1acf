// `lockstep train` on one worker: from options to results.
#pragma once

#include <lockstep/trainer.h>
#include <lockstep/world.h>

#include <cstdint>
#include <optional>
#include <string>

#include "app/train/arguments.h"
#include "app/train/shard_cost.h"
#include "app/train/step_traffic.h"

namespace lockstep::app {

// What the leader shows and writes in the end.
struct TrainReport {
  int workers = 0;
  std::string engine;
  std::size_t parameters = 0;
  std::int64_t training_samples = 0;
  std::int64_t total_steps = 0;  // of the whole job
  std::optional<double> speedup_over_one_worker;
  TrainingResult result;
  std::string codec;  // empty: none
  StepTraffic traffic;
  std::optional<ShardCost> shard_cost;  // nothing: not measured
};

// Collective. If the choice is open, the leader's counts for all. If the workers' options differ, training ends with
// Mismatch.
void choose_onednn(TrainArguments& arguments, World& world);

// Collective. Ends early, with a checkpoint, when `stop_requested()` has been called.
TrainReport run_training(const TrainArguments& arguments, World& world);

// For a signal handler: the job ends after a step, in order.
void stop_requested() noexcept;

// The results as JSON, and in a form for people.
std::string to_json(const TrainArguments& arguments, const TrainReport& report);
std::string summary(const TrainArguments& arguments, const TrainReport& report);

// BadInput if --until names a step that was not compared.
void check_verified(const TrainArguments& arguments, const TrainReport& report);

// For a job that was stopped early: one line that says how far it came and how it goes on.
std::string how_to_go_on(const TrainArguments& arguments, const TrainReport& report);

}  // namespace lockstep::app
