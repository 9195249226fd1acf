// What a Job is made of, for the Job and for the Trainer. In the order of the calls:
//
//   prepare   once all Steps are made: workers agree on the job and its data
//   open      goes on from the checkpoint, if there is one, and opens a loop
//   run       one phase: a Step on the current batch of the loop
//   collect   looks at the numbers of the phase before: before the next update, or when the job is settled
//   rerun     two copies differ, and nobody can say which is wrong: runs the phases since the checkpoint again
//
// A phase that finds two different copies ends without an update. The rerun comes in the next call that settles the
// job, so that a step never runs inside a step.
#pragma once

#include <lockstep/errors.h>
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
#include "torch/step/local_model.h"
#include "torch/step/loop.h"
#include "torch/step/phase_result.h"
#include "torch/step/step_run.h"
#include "torch/step/stop_signal.h"
#include "torch/step/stream_positions.h"

namespace lockstep::steps {

// The models of a job: those that its Steps train, and those that their losses only read. And the tensors of the
// program's own that checkpoints keep.
struct JobModels {
  struct Trained {
    optim::Optimizer* optimizer = nullptr;
    ModelView model;
    bool averages = false;  // some Step wants to see the averages before an update
    std::shared_ptr<LocalModel> local = nullptr;  // null: no local steps
    int fragment = 0;                             // of `local`
    // True also for a model without fragments. What belongs to a whole model is done with this one.
    bool is_first_fragment() const { return fragment == 0; }
  };
  struct Scaled {
    std::string step;  // the first that uses it
    GradScaler* scaler = nullptr;
  };
  std::vector<ModelView> all;
  std::vector<Trained> trained;
  std::vector<Scaled> scaled;
  std::vector<NamedTensor> kept;

  void add(const StepCore& step);
  void add_scaler(const StepCore& step);
  std::vector<ModelView> with_inner() const;  // all, and with local steps also what shards train
  JobState named_state() const;  // of all models, optimizers and scalers, and what is kept
};

// What the Trainer is told while a job runs: on every worker, on the thread that uses the job.
struct JobHooks {
  // The numbers of a phase have come. `again`: they had, but this worker leads only now.
  std::function<void(const PhaseResult&, bool again)> on_result;
  std::function<void(const std::string& path, std::int64_t step)> on_saved;
};

// A job on this worker. Its Job, its Steps and its open Loop share it.
//
// Threads:   one caller at a time; request_stop() from any thread and from a signal handler.
// Blocking:  everything except request_stop() and the accessors is collective.
// Failure:   as Job.
// Ownership: owns the Steps; borrows their optimizers. The world outlives it.
class JobCore : public control::Member, public std::enable_shared_from_this<JobCore> {
 public:
  static std::shared_ptr<JobCore> make(World& world, JobSetup setup, JobHooks hooks = {});
  // Waits for the numbers of the last phase, unless something has failed.
  ~JobCore() override;

  // Only between two loops.
  void rebind(World& world) override;

  StepCore& add_step(std::unique_ptr<StepCore> step);
  void keep(const std::string& name, const torch::Tensor& tensor);
  void keep(const std::string& name, ReduceLROnPlateau& plateau);

  // `more`: what workers must agree on besides the job's properties and the options.
  void prepare(const DatasetPtr& dataset, const BatchesOptions& options,
               const std::vector<replica::Property>& more = {});
  std::shared_ptr<Loop> open(const DatasetPtr& dataset, const BatchesOptions& options);

  struct Ran {
    Phase phase;
    std::shared_ptr<PhaseResult> result;  // null: there was no update, and the job must be settled
  };
  Ran run(StepCore& step, const GlobalBatch& batch);

  // Looks at the numbers of the last phase, and reruns if only that can say which copy is right.
  void settle();
  void save();  // unless this position is saved already; waits for the disk
  Evaluation evaluate(const Dataset& dataset, const std::function<Score(const Batch&)>& score,
                      const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  void request_stop() noexcept { stop_requested_.store(true); }
  // The lock on the run directory: another job may use the directory when the caller drops it.
  std::shared_ptr<const base::FileLock> take_lock();

  const JobOptions& options() const { return setup_.options; }
  Generation& generation() { return generation_; }
  const JobModels& models() const { return models_; }
  const JobState& state() const { return state_; }
  const plan::Batches& plan() const { return *data_.plan; }
  bool is_prepared() const { return data_.plan.has_value(); }
  std::vector<std::shared_ptr<torch::nn::Module>> modules() const;
  bool identical();               // all workers have the same weights and buffers; collective
  Properties properties() const;  // what a checkpoint must share with the job that goes on from it
  Properties hashed_properties() const;  // what a hash log says: the same, and a sample of the data
  std::string checkpoint_path() const { return checkpoints_ ? checkpoints_->path() : ""; }
  std::int64_t position() const;  // batches that are done
  bool stopped() const { return progress_.stopped; }

  // Runs it; again whole, if workers are lost meanwhile. Between two phases.
  template <typename Run>
  auto repeated(const Run& run);

 private:
  friend class Loop;  // it moves the job's position
  JobCore(World& world, JobSetup setup, JobHooks hooks);

  struct Legacy;  // what workers have left that have all ended (legacy.cpp)
  struct Data {
    DatasetPtr dataset;  // these three as prepare() got them last
    BatchesOptions options;
    std::vector<replica::Property> more;
    DataRecord record;
    std::int64_t samples = 0;
    std::optional<plan::Batches> plan;                  // once the job is prepared
    std::shared_ptr<const data::StreamReader> streams;  // null: samples by number
    std::optional<StreamPositions> positions;           // of streams
  };
  struct Progress {
    std::int64_t next = 0;     // the next batch
    std::int64_t commits = 0;  // phases that were committed since the job was opened
    bool opened = false;       // a loop, now or before
    bool running = false;      // a phase is under way; stays so if it fails
    bool regroups = false;     // workers have changed, and the job goes to those that are there
    bool partial = false;      // an exception has left the loop in a batch that a Step had used
    bool stopped = false;      // a loop has ended because the job was told to stop
    PhaseResult::Asks asked;   // what all workers know that some of them have asked for
    Loop* loop = nullptr;      // the open one
    std::shared_ptr<const Legacy> legacy =
        {};                            // until its phase is taken over; null: there is none
    std::optional<StopSignal> signal;  // while a loop is open that writes checkpoints
  };
  // The numbers of the last phase, in flight between workers.
  struct Numbers {
    struct Undecided {
      divergence::Check* check = nullptr;
      divergence::Check::Undecided found;
      int phase = 0;
    };
    std::shared_ptr<PhaseResult> pending;
    std::vector<divergence::Check*> checks;  // whose digests they are
    std::optional<Undecided> undecided;      // only a rerun can say which copy is right
    // The last that the hook was told of, if this worker did not lead then.
    std::shared_ptr<PhaseResult> told;
    Comm channel;  // last, so that it goes first: it ends the operation that uses pending's memory
  };
  // A phase that was run since the last checkpoint, with the learning rates that it had: a rerun repeats it.
  struct Call {
    std::int64_t step = 0;
    int phase = 0;
    const StepCore* of = nullptr;
    std::vector<double> rates;
  };

  std::shared_ptr<PhaseResult> run_phase(StepCore& step, const Phase& phase);
  bool can_recover() const;
  void leave_if_broken(const std::exception& error) const;
  std::shared_ptr<PhaseResult> recover(const StepCore& step, const Phase& phase);
  void recover_at_rest();
  void join_newcomers();
  void regroup_at_rest(bool in_batch, std::int64_t step);
  struct Broken;  // where this worker was, and what became of it (recovery.cpp)
  void regroup(bool in_batch, std::int64_t step, Broken& own);
  void settle_phase(Comm& survivors, Broken& own);
  void ask_page(Comm& survivors, Broken& own);
  void rescue_numbers();
  // If all workers die (legacy.cpp).
  bool can_leave_memory(Loop& loop) const;
  std::string legacy_record(int workers) const;
  void leave_memory(Loop& loop);
  void seal_memory();
  void find_memory();
  std::shared_ptr<PhaseResult> take_over(const StepCore& step, const Phase& phase);
  CommitPage::Last take_memory(const StepCore& step, const Phase& phase, World& world);
  // Runs a check of bits, and goes back if it finds changed ones.
  template <typename Run>
  auto checked(const Run& run) {
    try {
      return run();
    } catch (const Mismatch& found) {
      go_back_after(found);
      throw;
    }
  }
  void go_back_after(const Mismatch& found);
  void tell_result(std::shared_ptr<PhaseResult> result);
  void make_local(StepCore& step);
  void name_state();
  DataRecord look_at(const Dataset& dataset, const BatchesOptions& options);
  void plan_data(const Dataset& dataset, const BatchesOptions& options);
  PhaseResult::Asks asks();
  bool told_to_stop() const;
  bool collect();
  void check_loss(const PhaseResult& result) const;
  [[noreturn]] void rerun();
  void begin_checkpoint();
  void finish_checkpoint();
  void save_if_due(const GlobalBatch& batch);
  std::int64_t saved_at() const;  // position of the last checkpoint that was begun; −1: none
  void restore();
  bool catch_up(std::int64_t commits);
  void take_state_of(int source, bool takes);
  void warn_beyond(std::int64_t end) const;
  void note_streams(std::int64_t step);
  void end_batch();  // of the loop
  void end_loop();   // writes all that must be written
  void leave(Loop& loop) noexcept;
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

template <typename Run>
auto JobCore::repeated(const Run& run) {
  while (true) {
    try {
      return run();
    } catch (const PeerLost&) {
      if (!can_recover() || progress_.running) throw;
    } catch (const Timeout&) {
      if (!can_recover() || progress_.running) throw;
    }
    recover_at_rest();
  }
}

}  // namespace lockstep::steps
