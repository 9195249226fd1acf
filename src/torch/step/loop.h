// A job's loop while it is open: the job has the models, and loader threads read batches ahead.
#pragma once

#include <lockstep/job.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/position.h"
#include "plan/rounds.h"
#include "torch/data/reader.h"
#include "torch/divergence/check.h"
#include "torch/step/commit_page.h"
#include "torch/step/model_step.h"
#include "torch/step/shard_buffers.h"
#include "torch/step/step_run.h"

namespace lockstep::steps {

class JobCore;

using plan::StepRange;

// The batches of the shards that this worker hosts, in the order of plan/rounds.h. If a shard has no samples in a short last
// batch, its batch is empty.
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  take(), end() and again(), until the batch has been read.
// Failure:   what the data set throws.
// Ownership: shares the data set.
class HostedBatches {
 public:
  // What becomes of a batch when it was taken. If several Steps want it, it is kept until the next step begins.
  enum class Taken : bool { kDropped, kKept };
  // Or nothing is read ahead, because nobody knows which batches this worker will take.
  enum class Ahead : bool { kNothing, kHosted };
  struct Source {
    DatasetPtr dataset;
    plan::DataOptions plan;
    plan::Rounds rounds;
    data::PrefetchOptions prefetch;
    Device device;  // for batches
    Ahead ahead = Ahead::kHosted;
  };
  HostedBatches(plan::ShardRange hosted, Taken taken, const Source& source)
      : hosted_(hosted), taken_(taken), source_(source), samples_(source.plan) {}

  // Reads these steps from here on, and drops what was read ahead. They begin with a round. close() ends all reading.
  void open(StepRange steps);
  void close() { reader_.reset(); }
  bool is_open() const { return reader_.has_value(); }

  void begin(StepRange round);  // after open(), or after end() of the round before
  // First in order; a second time: kept, or read again. With Ahead::kNothing in any order, and any shard.
  Batch take(std::int64_t step, int shard);
  void end();  // drops the batches that no Step has taken

  // On a GPU: moves the next batch there while the GPU computes.
  void look_ahead() { reader_->look_ahead(); }

  // Reads any shard of any step now, also one that another worker hosts.
  Batch again(std::int64_t step, int shard) { return reader_->again(samples_.of(step, shard)); }

 private:
  Batch next();
  std::int64_t in_round() const { return round_.size() * hosted_.size(); }
  bool reads_ahead() const { return source_.ahead == Ahead::kHosted; }

  plan::ShardRange hosted_;
  Taken taken_;
  Source source_;
  StepRange round_;
  std::int64_t next_ = 0;               // of the round: which batch the reader gives next
  std::map<std::int64_t, Batch> kept_;  // by their numbers in the round
  data::ShardSamples samples_;
  std::optional<data::Reader> reader_;  // last: its threads use the samples
};

// What a job has only while a loop is open: how its models, buffers and Steps run. The models are the program's again
// when it goes.
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  the constructor, first() and advance(), which are collective.
// Failure:   as Batches.
// Ownership: shares the job. Batches or the Trainer own it; the job knows it while it lives.
class Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(std::shared_ptr<JobCore> job, DatasetPtr dataset, const BatchesOptions& options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // The steps of the loop: from the job's position to the end. The end may be moved before first().
  std::int64_t end() const { return end_; }
  void set_end(std::int64_t end) { end_ = end; }

  // Go to the first batch, and to the next. False if there is none: then all that must be written is written.
  bool first();
  bool advance();
  const GlobalBatch& current() const { return current_; }
  // That begins with this step.
  StepRange round_at(std::int64_t step) const;

  // The phases of the current batch.
  Phase next_phase();
  bool has_phases() const { return phases_ > 0; }
  // In the destructor: whether the loop ends because an exception passes.
  bool is_unwound() const { return std::uncaught_exceptions() > exceptions_; }
  HostedBatches& batches() { return *batches_; }

  // The job goes to other workers. close: gives the models back; what was read ahead is dropped. reopen: takes them again
  // there, to read batches from this step on. Collective, as the constructor.
  void close() noexcept;
  void reopen(std::int64_t step);
  // Buffers of all models, as the last phase that was committed has left them: packed; those of GPUs stay there.
  void keep_buffers(std::vector<std::byte> packed);
  void restore_buffers();

  // For a rerun: goes back to the first of these steps, then on to each of them that begins a round.
  void go_back(StepRange steps);
  void rerun_to(std::int64_t step);

  // A model, its optimizer and its divergence check, if there is one.
  struct Trained {
    ModelStep step;
    std::optional<divergence::Check> check;
    Trained(optim::Optimizer& optimizer, Generation& generation, ModelStep::Options options)
        : step(optimizer, generation, options) {
      if (options.with_parity) check.emplace(step, generation.control);
    }
  };
  // Of which models each worker has weights of its own, though workers share memory.
  enum class OwnWeights { kNone, kSome, kAll };
  OwnWeights own_weights() const;
  std::size_t number_of(const optim::Optimizer& optimizer) const;
  Trained& trained(std::size_t number) { return *trained_[number]; }
  CommitPage* commit_page() {
    return commit_page_.get();
  }                                               // null on a GPU if the world is not elastic
  std::vector<std::byte> packed_buffers() const;  // of all models; empty on a GPU
  void check_at_rest(std::int64_t step);
  StepRun& run_of(const StepCore& step);
  // By model.
  const std::vector<std::unique_ptr<ShardBuffers>>& buffers() const { return buffers_.of_shards; }

  Generation& generation();
  const plan::Batches& plan() const;
  const LocalSteps& local_steps() const;
  // The fragment of streamed models that the round of this step exchanges; LocalModel::kAll: everything.
  int exchanged(std::int64_t step) const;
  std::string job_digest()
      const;  // of all that decides its bits, but for the order of asynchronous steps
  const std::vector<ModelView>& models() const;

 private:
  friend class JobCore;  // opens it in the place of workers that have ended
  void open();
  void go_to(std::int64_t step);
  bool go_on();
  void open_models();
  void open_page();

  std::shared_ptr<JobCore> job_;
  int exceptions_ = std::uncaught_exceptions();  // that were under way when the loop was opened
  std::int64_t end_ = 0;
  GlobalBatch current_;
  int phases_ = 0;  // of the current batch, so far
  std::unique_ptr<StreamOfModels> stream_;
  std::vector<std::unique_ptr<Trained>> trained_;
  std::unique_ptr<CommitPage> commit_page_;
  struct Buffers {
    std::vector<std::unique_ptr<ShardBuffers>> of_shards;  // by model
    std::vector<std::byte> at_rest;                        // of all models
    std::vector<torch::Tensor> kept;                       // the same of GPUs, by model
  };
  Buffers buffers_;
  std::vector<std::unique_ptr<StepRun>> runs_;
  struct Source {
    DatasetPtr dataset;
    data::PrefetchOptions prefetch;
  };
  Source source_;
  std::unique_ptr<HostedBatches>
      batches_;  // last, so that it goes first, and its loader threads with it
};

}  // namespace lockstep::steps
