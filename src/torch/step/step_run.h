// A Step while its job's loop is open. One phase on this worker:
//
//   forward, backward     of every hosted shard; with local steps a whole round of it (local_shards.cpp): seeded for (job, step, phase, shard), with the buffers of the phase
//                         before, weighted by its samples. Its gradients go to the bank that plan/ names
//   reduction             the sum over shards divided by the sum of weights. Where workers share memory it is one pass
//                         with the update, after every worker's last backward. Elsewhere it goes with the last
//                         backward, in buckets
//   buffers               become the first shard's, or the mean over shards
//   small values, intent  what the phase changes besides weights, and what decides its update, goes to memory of the
//                         host (commit_page.h)
//   update, commit        of all optimizers of the Step. With a scaler, a step whose gradients have overflowed is
//                         committed without an update
//   numbers               loss, metrics, stop requests and digests of all workers. They are looked at before the next
//                         update, so nobody waits for them here
#pragma once

#include <lockstep/step.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "torch/divergence/check.h"
#include "torch/step/local_model.h"
#include "torch/step/model_step.h"
#include "torch/step/shard_runner.h"

namespace lockstep::steps {

class Loop;

// What a program has said of a Step. The job owns it, because the program's Step may go before the job does.
class StepCore {
 public:
  std::string name;
  std::vector<optim::Optimizer*> optimizers;
  Step::Loss loss;
  StepOptions options;
  // With local steps, by optimizer that the program gave: `optimizers` are the outer ones then.
  std::vector<std::shared_ptr<LocalModel>> locals = {};
  std::optional<std::vector<std::string>> metrics = {};  // sorted names; known after the first call
  std::set<std::string> metrics_before = {};             // of generations before
  std::shared_ptr<NoiseRecord> noise = {};               // null: gradients are not measured
};

struct Phase {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int number = 0;          // how many calls on this batch came before
  std::int64_t steps = 1;  // of the round that begins with this step
};

// A Step in an open loop.
//
// Threads:   one caller at a time.
// Blocking:  run() and result(), which are collective, at most the Comm's timeout.
// Failure:   as Step.
// Ownership: the Loop owns it; it borrows the Loop and the Step's core.
class StepRun {
 public:
  StepRun(StepCore& core, Loop& loop);

  // Calls `goes_on` when every gradient is there, before anything is written. If that says false, the phase ends there:
  // run() returns false, and there was no update.
  using GoesOn = std::function<bool()>;
  bool run(const Phase& phase, const GoesOn& goes_on);

  // The numbers of the last phase. From a CPU they are in flight already; from a GPU PhaseResult::wait() sends them.
  std::shared_ptr<PhaseResult> result(const Phase& phase, Comm& channel, PhaseResult::Asks asks);

  // After a worker was lost in the phase. finish: others have begun to write; writes what nobody has written, and commits.
  // complete: the phase is committed, and run() did not return; does the rest of it.
  void finish();
  void complete();
  // The same for a phase of workers that have all ended, and whose memory the models have now: finishes it if it is not
  // committed, and takes its numbers and buffers.
  void take_over(const Phase& phase);
  PhaseResult::About about(const Phase& phase) const;

  const StepCore& core() const { return core_; }
  const std::vector<divergence::Check*>& checks() const { return checks_; }
  // Learning rates of all optimizers that the program gave, one after the other.
  std::vector<double> rates() const;
  void set_rates(const std::vector<double>& rates);
  // How long the last phase waited for other workers.
  std::chrono::nanoseconds exposed() const { return exposed_; }
  const ShardCounts& counts() const { return runner_->counts(); }

 private:
  // The weights of all shards. If a function gives them, each worker knows only its own until exchange().
  struct Weights {
    std::vector<double> by_shard;
    std::optional<double> total;  // once all are known
  };
  Weights known_weights(const Phase& phase) const;
  // A model that it trains. With streaming, a fragment of one.
  struct Part {
    ModelStep* model = nullptr;
    std::size_t number = 0;              // among the trained ones of the loop
    divergence::Check* check = nullptr;  // null without check_divergence
    int fragment = LocalModel::kAll;
  };
  Part part_of(const optim::Optimizer& optimizer) const;
  void choose(const Phase& phase);
  std::int64_t samples_of(const Phase& phase, int shard) const;
  double dropped(const Phase& phase) const;
  double exchange(Weights& weights);
  bool measures(std::int64_t step) const;
  class PhaseTurns;
  void run_shards(const Phase& phase, Weights& weights);
  void end_shards();
  void end_buffers(const Phase& phase);
  void update(const Phase& phase, const std::vector<optim::GradientSource>& sources);
  void write(std::size_t model, const flat::Note& note, optim::UpdateJournal* journal);
  std::vector<double> intent() const;
  void end_update();
  std::map<int, double> losses_for(const CommitPage& page) const;
  GradScaler* scaler() const;  // null: there is none, or it is not enabled
  void agree_on_metrics();
  std::vector<optim::Optimizer*> given() const;

  StepCore& core_;
  Loop& loop_;
  std::vector<Part> parts_;
  // Of those that the last phase has updated: all, unless the models are streamed.
  std::vector<ModelStep*> models_;
  std::vector<std::size_t> numbers_;
  std::vector<divergence::Check*> checks_;
  std::shared_ptr<ShardRunner> runner_;  // shared, so that results can see whether it is gone
  double total_weight_ = 0;              // of the last phase
  bool skips_ = false;                   // the last phase
  bool updated_ = false;                 // the last phase has done all its writing
  // Of the last phase, if it was measured: by hosted shard and model, squares of norms of the gradients.
  std::map<int, std::vector<double>> squares_;
  std::chrono::nanoseconds exposed_{0};
};

}  // namespace lockstep::steps
