// A job's loop while it is open: its models are the job's, and batches are read ahead.
#pragma once

#include <lockstep/job.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/position.h"
#include "torch/data/reader.h"
#include "torch/divergence/check.h"
#include "torch/step/commit_page.h"
#include "torch/step/model_step.h"
#include "torch/step/shard_buffers.h"
#include "torch/step/step_run.h"

namespace lockstep::steps {

class JobCore;

struct StepRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

// The batches of the shards that a worker hosts, in order of steps and, within one, of shards. A shard that has no samples
// in a short last batch gives an empty one.
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  take(), end() and again(), until the batch has been read.
// Failure:   what the data set throws.
// Ownership: shares the data set.
class HostedBatches {
 public:
  // What happens to a batch once it was taken: where several Steps want it, it is kept until the next begins.
  enum class Taken : bool { kDropped, kKept };
  struct Source {
    DatasetPtr dataset;
    plan::DataOptions plan;
    data::PrefetchOptions prefetch;
    Device device;  // for batches
  };
  HostedBatches(plan::ShardRange hosted, Taken taken, const Source& source)
      : hosted_(hosted), taken_(taken), source_(source), samples_(source.plan) {}

  // Reads these steps from here on; what was read ahead before is dropped. close() ends all reading.
  void open(StepRange steps);
  void close() { reader_.reset(); }
  bool is_open() const { return reader_.has_value(); }

  void begin(std::int64_t step);  // after open(), or end() of the one before
  Batch take(int shard);          // a second time: kept, or read again
  void end();                     // takes those that nobody wanted

  // Moves the next batch to the GPU, if there is one, while it computes.
  void look_ahead() { reader_->look_ahead(); }

  // Any shard of any step, now, whether or not it is hosted here.
  Batch again(std::int64_t step, int shard) { return reader_->again(samples_.of(step, shard)); }

 private:
  Batch next();

  plan::ShardRange hosted_;
  Taken taken_;
  Source source_;
  std::int64_t step_ = 0;
  int next_ = 0;  // shard, to come from the reader
  std::map<int, Batch> kept_;
  data::ShardSamples samples_;
  std::optional<data::Reader> reader_;  // last: its threads use the samples
};

// What lives as long as a loop, and not as the job: the user's model is the user's again when it ends.
//
// Threads:   one caller at a time.
// Blocking:  the constructor, first() and advance(), which are collective.
// Failure:   as Batches.
// Ownership: shares the job.
class Loop {
 public:
  Loop(std::shared_ptr<JobCore> job, DatasetPtr dataset, const BatchesOptions& options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // The steps of the loop: from the job's position to the end. The end may be moved before first().
  std::int64_t end() const { return end_; }
  void set_end(std::int64_t end) { end_ = end; }

  // To the first batch, and to the next; false when there is none, and all is written that had to be.
  bool first();
  bool advance();
  const GlobalBatch& current() const { return current_; }

  // The phases of the current batch.
  Phase next_phase();
  bool has_phases() const { return phases_ > 0; }
  // Whether it ends because an exception passes.
  bool is_unwound() const { return std::uncaught_exceptions() > exceptions_; }
  HostedBatches& batches() { return batches_; }

  // Goes back, to run steps again; then on to one of them after the other.
  void go_back(StepRange steps);
  void replay_to(std::int64_t step);

  // The model that an optimizer trains, and what looks after it.
  struct Trained {
    ModelStep step;
    std::optional<divergence::Check> check;
    Trained(optim::Optimizer& optimizer, Generation& generation, ModelStep::Options options)
        : step(optimizer, generation, options) {
      if (options.watches) check.emplace(step, generation.control);
    }
  };
  Trained& trained(const optim::Optimizer& optimizer);
  std::size_t number_of(const ModelStep& model) const;      // among those that are trained
  CommitPage* commit_page() { return commit_page_.get(); }  // null: there is none
  std::vector<std::byte> packed_buffers() const;            // of all models
  void check_at_rest(std::int64_t step);
  StepRun& run_of(const StepCore& step);

  // Buffers of all models of the job.
  void begin_buffers();
  void begin_shard_of_buffers();
  void end_shard_of_buffers(int shard);
  void end_buffers(std::int64_t step);

  Generation& generation();
  const plan::Batches& plan() const;
  const std::vector<ModelView>& models() const;

 private:
  void go_to(std::int64_t step);
  bool go_on();
  void open_models();
  void open_page();

  std::shared_ptr<JobCore> job_;
  int exceptions_ = std::uncaught_exceptions();  // under way when the loop was opened
  std::int64_t end_ = 0;
  GlobalBatch current_;
  int phases_ = 0;  // of the current batch, so far
  std::unique_ptr<StreamOfModels> stream_;
  std::vector<std::unique_ptr<Trained>> trained_;
  std::unique_ptr<CommitPage> commit_page_;
  std::vector<std::unique_ptr<ShardBuffers>> buffers_;
  std::vector<std::unique_ptr<StepRun>> runs_;
  HostedBatches batches_;  // last: loader threads end first
};

}  // namespace lockstep::steps
