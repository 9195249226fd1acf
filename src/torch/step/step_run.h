// A Step while its job's loop is open. One phase on this worker:
//
//   forward, backward   for every hosted shard, seeded for (job, step, phase, shard), with the buffers of the phase
//                       before, weighted by its samples; its gradients go where plan/ says
//   reduction           the sum over shards divided by the sum of weights
//                       Where workers share memory it is one pass with the update, after every worker's last
//                       backward; else the reduction goes with the last backward, in buckets
//   buffers             become the first shard's, or the mean over shards
//   small values, intent  all that the phase changes or decides by is in memory of the host (commit_page.h)
//   update, commit      of all optimizers of the Step
//   numbers             loss, metrics, stop requests and news of the divergence check from all workers, looked at before
//                       the next update, so that nobody waits
#pragma once

#include <lockstep/step.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/divergence/check.h"
#include "torch/step/model_step.h"
#include "torch/step/shard_runner.h"

namespace lockstep::steps {

class Loop;

// What a program has said of a Step; it lives as long as the job.
class StepCore {
 public:
  StepCore(std::string its_name, std::vector<optim::Optimizer*> its_optimizers, Step::Loss its_loss,
           StepOptions its_options)
      : name(std::move(its_name)),
        optimizers(std::move(its_optimizers)),
        loss(std::move(its_loss)),
        options(std::move(its_options)) {}

  const std::string name;
  const std::vector<optim::Optimizer*> optimizers;
  const Step::Loss loss;
  const StepOptions options;
  std::optional<std::vector<std::string>> metrics;  // names, after the first call; sorted
};

struct Phase {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int number = 0;  // of the calls on one batch
};

// Threads:   one caller at a time.
// Blocking:  run() and result(), which are collective, at most the Comm's timeout.
// Failure:   as Step.
// Ownership: borrows the Step's core and the loop.
class StepRun {
 public:
  StepRun(StepCore& core, Loop& loop);

  // Asks when every gradient is there, before anything is written: with false it ends there, and says so.
  using GoesOn = std::function<bool()>;
  bool run(const Phase& phase, const GoesOn& goes_on);

  // The numbers of the last phase, on their way; on a GPU they set out when they are waited for.
  std::shared_ptr<PhaseResult> result(const Phase& phase, Comm& channel, bool stop);

  const StepCore& core() const { return core_; }
  const std::vector<divergence::Check*>& checks() const { return checks_; }
  std::vector<double> rates() const;  // of all its optimizers, one after the other
  void set_rates(const std::vector<double>& rates);
  std::chrono::nanoseconds exposed() const {
    return exposed_;
  }  // to other workers, by the last phase
  const ShardCounts& counts() const { return runner_->counts(); }

 private:
  // How much each shard counts.
  struct Weights {
    std::vector<double> by_shard;
    std::optional<double> total;  // once all are known
  };
  Weights known_weights(std::int64_t step) const;
  double exchange(Weights& weights);
  void run_shards(const Phase& phase, Weights& weights);
  void run_shard(ShardRunner::Turn& turn, Weights& weights, bool last);
  void update(const Phase& phase, const std::vector<optim::GradientSource>& sources);
  void apply(CommitPage& page);
  std::vector<double> intent() const;
  void agree_on_metrics();

  StepCore& core_;
  Loop& loop_;
  std::vector<ModelStep*> models_;
  std::vector<std::size_t> numbers_;        // of them, in the loop
  std::vector<divergence::Check*> checks_;  // none: nothing is watched
  std::shared_ptr<ShardRunner> runner_;
  double total_weight_ = 0;  // of the last phase
  std::chrono::nanoseconds exposed_{0};
};

}  // namespace lockstep::steps
