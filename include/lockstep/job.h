// A training job in a loop of your own: its data, its position, its checkpoints.
//
//   lockstep::Job job(world, {.global_batch = 256, .shards = 8, .seed = 7, .checkpoint = "run"});
//   auto model = lockstep::data_parallel(Net(), world);
//   lockstep::optim::AdamW optimizer(model, {.lr = 1e-3});
//   lockstep::Step step(job, "train", {&optimizer}, [&](const lockstep::Shard& shard) {
//     return torch::nll_loss(model->forward(shard.batch.data), shard.batch.target);
//   });
//   for (const lockstep::GlobalBatch& batch : job.batches(Pictures(), {.epochs = 5})) step(batch);
//
// The weights after a step depend on the job alone, to the bit: not on the number of workers, which may be another one
// when the job goes on from its checkpoint.
#pragma once

#include <lockstep/dataset.h>
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

// Where buffers, such as BatchNorm's statistics, come from after a step. Every shard of a step begins with
// the same.
enum class ShardBufferRule : std::uint8_t {
  kFirstShard,  // the first shard's, as PyTorch's rank 0
  kMean,        // the mean over shards; whole numbers are the first shard's
};

// What a job does about a checkpoint that it finds in its directory.
enum class ExistingCheckpoint : std::uint8_t {
  kRefuse,   // BadInput: it may be of another job, and would be lost
  kResume,   // goes on from it, if there is one
  kReplace,  // begins with step 0; the first checkpoint of this job takes its place
};

struct JobOptions {
  // What the result means.
  std::int64_t global_batch = 0;  // samples of one step, a multiple of the shards
  int shards = 0;          // logical slices of a global batch, at least as many as workers; 0: the
                           // checkpoint's, else default_shards()
  std::uint64_t seed = 0;  // of the order of samples and of every shard's random numbers
  ShardBufferRule buffers = ShardBufferRule::kFirstShard;
  // Whatever else decides the result; kept in checkpoints. The arithmetic of the process, and what the job knows of its
  // optimizers, is added.
  std::map<std::string, std::string> properties = {};

  // Looks for bits that changed on their own, as TrainerOptions::check_divergence. A loss that writes to parameters is
  // taken for one.
  bool check_divergence = true;

  // The directory of the newest checkpoint and the one before it. It belongs to this job as long as that lives.
  // Empty: nowhere.
  std::string checkpoint = {};
  std::int64_t checkpoint_every_steps = 0;  // 0: at the end of every epoch
  ExistingCheckpoint existing_checkpoint = ExistingCheckpoint::kResume;

  // Stops as request_stop() does when it becomes true: for signal handlers. May be null.
  const std::atomic<bool>* stop = nullptr;
};

// 8, or the largest divisor of the global batch below that.
int default_shards(std::int64_t global_batch);

struct BatchesOptions {
  // Where the loop ends, counted from the job's first step: one of the two.
  std::int64_t epochs = 0;
  std::int64_t steps = 0;

  // How fast batches come.
  int loader_threads = 1;
  int prefetch = 2;

  // Compares all of the data with that which the job began with, not 64 samples of it: it is read once at the start.
  bool verify_data = false;
};

// One global batch: a position in the data, and a reader. It holds no samples of its own.
//
// Threads:   one caller at a time.
// Blocking:  shard(), as long as reading takes.
// Failure:   what the data set throws.
// Ownership: valid until the loop goes on.
class GlobalBatch {
 public:
  std::int64_t step() const { return step_; }  // from 0
  std::int64_t epoch() const { return epoch_; }
  std::int64_t samples() const { return samples_; }

  // Whether the next batch is of another epoch.
  bool ends_epoch() const { return ends_epoch_; }

  // The samples of any shard, wherever it is hosted, on world.device(). They are read when it is called.
  Batch shard(int index) const;

 private:
  friend class steps::Loop;
  steps::Loop* loop_ = nullptr;
  std::int64_t step_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t samples_ = 0;
  bool ends_epoch_ = false;
};

// The batches from the job's position on, for one range-for loop. Going on to the next one ends the batch: the job's
// position moves, and a checkpoint is written if one is due. At the end of the loop, too.
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  going on is collective: it waits for the other workers, at most the world's timeout, and for the disk.
// Failure:   as Job. A loop that is left by break or by an exception writes no checkpoint; a batch that a Step was
//            called with counts as done. After an exception from a Step the job is of no further use.
// Ownership: shares the job and the data set. As long as it lives the job's models are the job's: nobody else runs a
//            backward pass over them.
class Batches {
 public:
  explicit Batches(std::unique_ptr<steps::Loop> loop);
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

  std::unique_ptr<steps::Loop> loop_;
};

// How well a model does on a batch; sums over its predictions.
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

// One training run: what it is, where it is, and where it is kept. Steps (step.h) change its models.
//
// Threads:   one caller at a time, over all that belongs to a world; request_stop() from anywhere, a signal handler too.
// Blocking:  all but the plain questions are collective: every worker makes the same calls in the same order, and waits
//            for the others, at most the world's timeout.
// Failure:   BadInput for options, files or data that do not fit; Unavailable when a checkpoint cannot be written;
//            PeerLost, Timeout; Mismatch when workers differ, or the checkpoint is of another job.
// Ownership: the world outlives it; Steps and Batches share it.
class Job {
 public:
  Job(World& world, const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // The batches from here to the end that the options name. The first call reads the checkpoint, if there is one, into
  // everything that the job's Steps change, so all of them are made before it. A later call, with the same data, goes on
  // where the last loop ended.
  Batches batches(DatasetPtr dataset, const BatchesOptions& options);
  template <typename TorchDataset>
  requires(!std::convertible_to<TorchDataset, DatasetPtr>) Batches
      batches(TorchDataset dataset, const BatchesOptions& options) {
    return batches(adapt(std::move(dataset)), options);
  }

  // Over a data set, by shard, so that the result depends on the job alone. The modules of the job's models are in eval()
  // while it runs, and nothing of the job changes.
  Evaluation evaluate(const DatasetPtr& dataset, const std::function<Score(const Batch&)>& score);

  // A checkpoint now; in a loop, before the first Step of a batch or after its last. BadInput without a directory.
  void save();

  // Goes on with the workers of another world, between two loops, without a checkpoint. All that was made in the job's
  // world comes along: models, optimizers, the job. A worker that joins makes the same in the new world, in the same
  // order, and gets the others' state in batches(); workers that leave call nothing. The world of before may end after it.
  // Needs at most as many workers as shards. Optimizers of LibTorch's own, and loaders, do not come along.
  void rebind(World& world);

  // All workers leave the loop after the same batch, soon, with a checkpoint.
  void request_stop() noexcept;
  bool stopped() const;  // a loop was left so

  int shards() const;
  std::int64_t step() const;             // batches that are done: the number of the next
  std::int64_t steps_per_epoch() const;  // 0 before batches()

  // SHA-256 of the parameters and buffers of all models (docs/guide/training.md says over what). Not collective.
  std::string weights_sha256() const;

 private:
  friend class Step;
  std::shared_ptr<steps::JobCore> core_;
};

}  // namespace lockstep
