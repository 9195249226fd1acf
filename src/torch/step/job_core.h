// What a Job is made of, for the Job and for the Trainer.
//
//   prepare   once all Steps are made: workers agree on the job and its data
//   open      goes on from the checkpoint, if there is one, and opens a loop
//   run       one phase: a Step on the batch that the loop is at
//   collect   looks at the numbers of the phase before: at latest before the next update, or when the job is settled
//   replay    where two copies differ and nobody can say which is wrong, phases are run again from the checkpoint. The
//             phase that finds it ends without an update; the next call that settles the job replays
#pragma once

#include <lockstep/job.h>
#include <lockstep/step.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/position.h"
#include "torch/divergence/check.h"
#include "torch/replica/agreement.h"
#include "torch/step/checkpoint.h"
#include "torch/step/data_record.h"
#include "torch/step/generation.h"
#include "torch/step/job_state.h"
#include "torch/step/loop.h"
#include "torch/step/phase_result.h"
#include "torch/step/step_run.h"

namespace lockstep::steps {

// The models of a job: those that its Steps train, and those that their losses read besides.
struct JobModels {
  struct Trained {
    optim::Optimizer* optimizer = nullptr;
    ModelView model;
    bool averages = false;  // some Step wants to see them before an update
  };
  std::vector<ModelView> all;
  std::vector<Trained> trained;

  void add(const StepCore& step);
  JobState named_state() const;  // of all of them
};

// What happens while a job runs; called on every worker.
struct JobHooks {
  std::function<void(const PhaseResult&)> on_result;  // its numbers have come
  std::function<void(const std::string& path, std::int64_t step)> on_saved;
};

// Threads:   one caller at a time; request_stop() from anywhere.
// Blocking:  all but the plain questions, which are collective.
// Failure:   as Job.
// Ownership: the world outlives it.
class JobCore : public control::Member, public std::enable_shared_from_this<JobCore> {
 public:
  static std::shared_ptr<JobCore> make(World& world, JobSetup setup, JobHooks hooks = {});

  // Between loops.
  void rebind(World& world) override;

  StepCore& add_step(std::unique_ptr<StepCore> step);

  // `more` is what workers must agree on besides.
  void prepare(const DatasetPtr& dataset, const BatchesOptions& options,
               std::vector<replica::Property> more = {});
  std::unique_ptr<Loop> open(const DatasetPtr& dataset, const BatchesOptions& options);

  struct Ran {
    Phase phase;
    std::shared_ptr<PhaseResult> result;  // null: it could not end, and the job must be settled
  };
  Ran run(StepCore& step, const GlobalBatch& batch);

  // All that is known of the last phase has been looked at.
  void settle();
  void save();  // unless it is saved already
  Evaluation evaluate(const Dataset& dataset, const std::function<Score(const Batch&)>& score,
                      const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  void request_stop() noexcept { stop_requested_.store(true); }
  // The directory is another job's to take once it is dropped.
  std::optional<base::FileLock> take_lock();

  const JobOptions& options() const { return setup_.options; }
  Generation& generation() { return generation_; }
  const JobModels& models() const { return models_; }
  const JobState& state() const { return state_; }
  const plan::Batches& plan() const { return *data_.plan; }
  bool is_prepared() const { return data_.plan.has_value(); }
  std::vector<std::shared_ptr<torch::nn::Module>> modules() const;
  Properties properties() const;  // what a checkpoint must share with the job that goes on from it
  Properties properties_with_data() const;  // and what else it says
  Properties hashed_properties() const;     // what a log of hashes says: data by its sample
  std::string checkpoint_path() const { return checkpoints_ ? checkpoints_->path() : ""; }
  std::int64_t position() const;  // batches that are done
  std::int64_t saved_at() const { return progress_.saved_at; }
  bool stopped() const { return progress_.stopped; }
  bool undecided() const { return numbers_.undecided.has_value(); }

 private:
  friend class Loop;
  JobCore(World& world, JobSetup setup, JobHooks hooks);

  // The data of the job.
  struct Data {
    DataRecord record;
    std::int64_t samples = 0;
    std::optional<plan::Batches> plan;  // once the job is prepared
  };
  struct Progress {
    std::int64_t next = 0;  // batch
    std::int64_t saved_at = -1;
    bool opened = false;   // once
    bool running = false;  // a phase; for ever, if it failed
    bool partial = false;  // the last batch was left by an exception
    bool stop = false;     // agreed by all
    bool stopped = false;  // a loop was left for it
    Loop* loop = nullptr;  // that is open
  };
  // On their way between workers.
  struct Numbers {
    struct Undecided {
      divergence::Check* check = nullptr;
      divergence::Check::Undecided found;
      int phase = 0;
    };
    std::shared_ptr<PhaseResult> pending;
    std::vector<divergence::Check*> checks;  // that its marks are of
    std::optional<Undecided> undecided;
    Comm channel;  // last: it ends the operation that still uses the memory above
  };
  // What was run since the last checkpoint.
  struct Call {
    std::int64_t step = 0;
    int phase = 0;
    const StepCore* of = nullptr;
    std::vector<double> rates;
  };

  Loop& loop_at(const GlobalBatch& batch) const;
  bool told_to_stop() const;
  bool collect();
  void check_loss(const PhaseResult& result) const;
  [[noreturn]] void replay();
  void restore();
  void catch_up();
  void take_state_of(int source);
  void warn_beyond(std::int64_t end) const;
  void end_batch();  // of the loop
  void end_loop();   // with all that is to be written
  void leave(Loop& loop) noexcept;
  void save_if_due(bool epoch_ended);
  void reseed(std::int64_t step) const;
  bool records_calls() const { return checkpoints_ && setup_.options.check_divergence; }

  JobSetup setup_;
  JobHooks hooks_;
  std::atomic<bool> stop_requested_{false};
  Generation generation_;
  std::optional<CheckpointDirectory> checkpoints_;
  JobModels models_;
  JobState state_;  // once all models are known
  std::vector<std::unique_ptr<StepCore>> steps_;
  Data data_;
  Progress progress_;
  std::vector<Call> calls_;
  Numbers numbers_;
};

}  // namespace lockstep::steps
