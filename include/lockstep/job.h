// A training job in your own loop: its data, its position, its checkpoints.
//
//   lockstep::Job job(world, {.global_batch = 256, .shards = 8, .seed = 7, .checkpoint = "run"});
//   torch::manual_seed(7);  // the same first weights in every run
//   auto model = lockstep::data_parallel(Net(), world);
//   lockstep::optim::AdamW optimizer(model, {.lr = 1e-3});
//   lockstep::Step step(job, "train", {&optimizer}, [&](const lockstep::Shard& shard) {
//     return torch::nll_loss(model->forward(shard.batch.data), shard.batch.target);
//   });
//   for (const lockstep::GlobalBatch& batch : job.batches(Pictures(), {.epochs = 5})) step(batch);
//
// Every bit of the weights after a step depends on the job alone. It does not depend on the number of workers, which
// may change when the job goes on from its checkpoint.
#pragma once

#include <lockstep/dataset.h>
#include <lockstep/local_steps.h>
#include <lockstep/schedule.h>
#include <lockstep/world.h>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace lockstep {

namespace steps {
class JobCore;
class Loop;
}  // namespace steps

// Which values buffers, such as BatchNorm's statistics, have after a step. All shards of a step begin with the same
// values.
enum class ShardBufferRule : std::uint8_t {
  kFirstShard,  // those of the first shard, as those of rank 0 in PyTorch
  kMean,        // the mean over shards; integers are those of the first shard
};

// What a job does if it finds a checkpoint in its directory.
enum class ExistingCheckpoint : std::uint8_t {
  kRefuse,   // BadInput: it may belong to another job, and would be lost
  kResume,   // goes on from it, if there is one
  kReplace,  // begins with step 0; the first checkpoint of this job replaces it
};

struct JobOptions {
  // What the result means.
  std::int64_t global_batch = 0;  // samples of one step; a multiple of the number of shards
  int shards = 0;          // shards of a global batch, at least as many as workers; 0: those of the
                           // checkpoint; without one, default_shards()
  std::uint64_t seed = 0;  // decides the order of samples and the random numbers of every shard
  ShardBufferRule buffers = ShardBufferRule::kFirstShard;
  // Shards train by themselves for a round, and then exchange weights (local_steps.h). The job then has one Step, a batch
  // of the loop is a round, and buffers become their mean over shards. Parameters have float32 or float64.
  LocalSteps local_steps = {};
  // Everything else that decides the result; kept in checkpoints. The job adds the arithmetic of the process, and what
  // it knows of its optimizers.
  std::map<std::string, std::string> properties = {};

  // Looks for bits that changed though nobody wrote them, as TrainerOptions::check_divergence does. Do not write to
  // parameters in a loss: the check takes that for such a change.
  bool check_divergence = true;

  // The run directory: it has the last checkpoints, so many. It belongs to this job as long as the job lives. Empty: no
  // checkpoints. Set at most one of the intervals; if both are 0, a checkpoint is written at the end of every epoch.
  std::string checkpoint = {};
  std::int64_t checkpoint_every_steps = 0;
  double checkpoint_every_seconds = 0;  // by rank 0's clock, after a batch
  int keep_checkpoints = 2;
  ExistingCheckpoint existing_checkpoint = ExistingCheckpoint::kResume;

  // When it becomes true, the job stops as after request_stop(). For signal handlers. May be null.
  const std::atomic<bool>* stop = nullptr;
};

// 8, or the largest divisor of the global batch below 8.
int default_shards(std::int64_t global_batch);

struct BatchesOptions {
  // Where the loop ends, counted from the job's first step. Set one of the two.
  std::int64_t epochs = 0;
  std::int64_t steps = 0;

  // Draws samples by weight. A part of the job, kept in checkpoints.
  WeightedSampling weighted = {};

  // How fast batches come.
  int loader_threads = 1;
  int prefetch = 2;

  // Compares all data with the data that the job began with, not only 64 samples. This reads all data once at the
  // start.
  bool verify_data = false;
};

// One global batch, or with local steps those of a round: a position in the data, and a reader. It has no samples itself.
//
// Threads:   one caller at a time.
// Blocking:  shard() blocks as long as reading takes.
// Failure:   what the data set throws.
// Ownership: valid until the loop goes on to the next batch.
class GlobalBatch {
 public:
  std::int64_t step() const { return step_; }    // from 0; of a round, the first
  std::int64_t steps() const { return steps_; }  // 1, or those of the round
  std::int64_t epoch() const { return epoch_; }  // that ends in it, or else that it is in
  std::int64_t samples() const { return samples_; }

  // Whether an epoch ends in it.
  bool ends_epoch() const { return ends_epoch_; }

  // Reads the samples of any shard, also of one that another worker hosts, in one of these steps. The tensors are on
  // world.device(). BadInput if the loop that gave this batch has ended.
  Batch shard(int index, std::int64_t number = 0) const;

 private:
  friend class steps::Loop;
  std::weak_ptr<steps::Loop> loop_;
  std::int64_t step_ = 0;
  std::int64_t steps_ = 1;
  std::int64_t epoch_ = 0;
  std::int64_t samples_ = 0;
  bool ends_epoch_ = false;
};

// The batches from the job's position on, for one range-for loop. When the loop goes on, the current batch ends: the
// job's position moves, and a checkpoint is written if it is time for one. The same happens at the end of the loop.
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  going on is collective: it waits for the other workers, at most the world's timeout, and for the disk.
// Failure:   as Job. A loop that ends by break or by an exception writes no checkpoint. A batch counts as done if a
//            Step was called with it. After an exception from a Step the job cannot be used any more.
// Ownership: shares the job and the data set. As long as it lives, only the job runs backward passes over its models.
class Batches {
 public:
  explicit Batches(std::shared_ptr<steps::Loop> loop);
  Batches(Batches&&) noexcept;
  ~Batches();

  class Iterator {
   public:
    Iterator(Batches* batches, bool end) : batches_(batches), end_(end) {}
    const GlobalBatch& operator*() const { return batches_->current(); }
    const GlobalBatch* operator->() const { return &batches_->current(); }
    Iterator& operator++() {
      end_ = !batches_->advance();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return end_ != other.end_; }

   private:
    Batches* batches_;
    bool end_;
  };
  Iterator begin() { return {this, !first()}; }
  Iterator end() { return {this, true}; }

 private:
  const GlobalBatch& current() const;
  bool first();
  bool advance();

  std::shared_ptr<steps::Loop> loop_;
};

// How good a model is on one batch: sums over its predictions.
struct Score {
  double loss = 0;
  std::int64_t correct = 0;
  std::int64_t predictions = 0;
};

struct Evaluation {
  double loss = 0;
  double accuracy = 0;  // 0 to 1
  std::int64_t samples = 0;
};

// One training run: what it is, how far it is, and where its checkpoints are. Steps (step.h) change its models.
//
// Threads:   one caller at a time, for everything that belongs to a world. request_stop() from any thread and from a
//            signal handler.
// Blocking:  everything except request_stop(), weights_sha256() and the accessors is collective: every worker makes the
//            same calls in the same order, and waits for the others, at most the world's timeout.
// Failure:   BadInput for options, files or data that do not fit; Unavailable if a checkpoint cannot be written;
//            PeerLost, Timeout; Mismatch if workers differ, or if the checkpoint belongs to another job. A loop writes
//            its checkpoints in the background: it throws some batches after the one whose checkpoint failed.
// Ownership: the world must outlive it. Steps and Batches share it.
class Job {
 public:
  Job(World& world, const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // The batches from the job's position to the end that the options name. The first call reads the checkpoint, if there
  // is one, into everything that the job's Steps change. So make all Steps before it. A later call, with the same data,
  // goes on where the last loop ended.
  Batches batches(DatasetPtr dataset, const BatchesOptions& options);
  template <typename TorchDataset>
  requires(!std::convertible_to<TorchDataset, DatasetPtr>) Batches
      batches(TorchDataset dataset, const BatchesOptions& options) {
    return batches(adapt(std::move(dataset)), options);
  }

  // Scores a data set shard by shard, so that the result depends on the job alone. The modules of the job's models are
  // in eval() meanwhile. Nothing of the job changes.
  Evaluation evaluate(const DatasetPtr& dataset, const std::function<Score(const Batch&)>& score);

  // Writes a checkpoint now, and returns when it is on the disk. In a loop, call it before the first Step of a batch or
  // after its last. Throws BadInput if the job has no directory.
  void save();

  // Keeps a tensor of the program's own in the job's checkpoints: the best score so far, for example. The first
  // batches() that finds a checkpoint copies its values into the tensor, and a worker that joins gets the values of the
  // others. Write to the tensor in place, the same values on every worker: `best = torch::minimum(best, loss)` makes
  // another tensor, which nobody keeps. It is dense and contiguous. A plateau must outlive the job. Call keep() before
  // batches(), the same on every worker, with another name each time. Not collective.
  void keep(const std::string& name, const torch::Tensor& tensor);
  void keep(const std::string& name, ReduceLROnPlateau& plateau);

  // Goes on with the workers of another world, without a checkpoint. Call it between two loops. Everything that was
  // made in the job's world moves to the new one: models, optimizers, the job. A worker that joins makes the same
  // objects in the new world, in the same order, and gets the state of the others in batches(). Workers that leave call
  // nothing. The old world may end afterwards. The new one has at most as many workers as shards. LibTorch's own
  // optimizers, and loaders, do not move.
  void rebind(World& world);

  // All workers leave the loop soon, after the same batch, and write a checkpoint.
  void request_stop() noexcept;
  bool stopped() const;  // a loop ended because of request_stop()

  int shards() const;
  std::int64_t step() const;  // number of batches that are done; the next one has this number
  std::int64_t steps_per_epoch() const;  // 0 before batches()

  // SHA-256 of the parameters and buffers of all models (docs/guide/training.md says over what). Not collective.
  std::string weights_sha256() const;

 private:
  friend class Step;
  std::shared_ptr<steps::JobCore> core_;
};

}  // namespace lockstep
