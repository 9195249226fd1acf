// The loop owner: steps, learning rate, checkpoints, evaluation and a report.
#pragma once

#include <lockstep/data.h>
#include <lockstep/data_parallel.h>
#include <lockstep/job.h>
#include <lockstep/optim.h>
#include <lockstep/step.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// What is trained. The functions are called with batches of one shard.
struct TrainerParts {
  Replica model;
  std::shared_ptr<torch::nn::Module> module;  // switched between train() and eval()
  std::shared_ptr<optim::Optimizer> optimizer;
  DatasetPtr train;
  DatasetPtr test;                                  // none: no evaluation
  std::function<torch::Tensor(const Batch&)> loss;  // a mean over the batch; see Threads below
  std::function<Score(const Batch&)> score;         // none: no evaluation
  std::function<double(std::int64_t)>
      learning_rate;  // of a step; none: the optimizer's own, kept in checkpoints

  // How much a shard's loss counts, above 0, such as its tokens without padding; none: its samples. The step follows
  // the mean over the global batch, weighted so. Called with a batch on the worker that hosts it.
  // Backward begins with it: near 1, say tokens over their most, where the loss is of a half type.
  std::function<double(const Batch&)> weight;
};

struct TrainerOptions {
  // What the result means.
  std::int64_t steps = 0;         // of the whole job; or
  std::int64_t epochs = 0;        // whichever is set
  std::int64_t global_batch = 0;  // samples of one step, a multiple of the shards
  int shards = 0;  // logical slices of a global batch, at least as many as workers, whose number
                   // the result does not depend on; 0: the checkpoint's, else by `accumulate`,
                   // else default_shards()
  int accumulate = 0;      // shards for each worker that the job starts with
  std::uint64_t seed = 0;  // of the order of samples and of every shard's random numbers
  ShardBufferRule buffers = ShardBufferRule::kFirstShard;
  // Whatever else decides the result; kept in checkpoints. The arithmetic of the process (threads, oneDNN, denormals …) is
  // added as it is when the Trainer is made.
  std::map<std::string, std::string> job;

  // How fast it comes.
  int loader_threads = 1;
  int prefetch = 2;

  // On a GPU: what a shard queues is captured as a CUDA graph and replayed, where it can be. The bits are the same, if all
  // that the loss depends on is in its batch, the model, the seed and tensors of the GPU; BadInput for one that is seen to
  // depend on more, such as a coefficient that the host changes.
  bool cuda_graphs = true;

  // Looks for bits that changed on their own: updates compare what they read with what was written, and workers their
  // copies, step by step (docs/internals/numerics.md). A loss or a hook that writes to parameters is taken for one.
  bool check_divergence = true;

  // A file for the hashes of all weights after every step, and one of another run to compare with; then nothing but the
  // steps in it is run, none after `verify_until`, and no checkpoint is written. Empty: neither.
  std::string hash_log;
  std::string verify_log;
  std::int64_t verify_until = -1;  // a step; −1: to the end of the log

  // Stops as request_stop() does when it becomes true: for signal handlers. May be null.
  const std::atomic<bool>* stop = nullptr;

  // Where it is kept: the newest checkpoint and the one before it. The directory belongs to this job until run() has
  // ended; another that wants to write there is refused. Empty: nowhere.
  std::string checkpoint_directory;
  std::int64_t checkpoint_every_steps = 0;  // 0: at the end of every epoch
  ExistingCheckpoint existing_checkpoint = ExistingCheckpoint::kRefuse;

  // Checkpoints say which data the job began with, and a job that goes on from one compares, as workers do with each other:
  // 64 samples spread over the data set; or all of it, which takes the time to read it once at the start.
  bool verify_data = false;
};

struct StepRecord {
  std::int64_t step = 0;  // from 0
  std::int64_t epoch = 0;
  double loss = 0;  // over all shards
  double lr = 0;
  double step_ms = 0;
  double exposed_comm_ms = 0;  // what waiting for other workers added to the step
};

struct TrainingResult {
  std::int64_t first_step = 0;       // where it began: 0, or the checkpoint's
  std::int64_t steps = 0;            // of the job, done
  int shards = 0;                    // of the job
  ShardCounts on_device;             // of this worker
  bool stopped = false;              // by request_stop()
  std::optional<double> final_loss;  // none without a step
  std::optional<Evaluation> evaluation;
  double seconds = 0;  // in steps
  double samples_per_second = 0;
  double step_ms_p50 = 0;
  double step_ms_p95 = 0;
  double exposed_comm_ms_p50 = 0;
  std::size_t memory_bytes = 0;  // of all workers together: the sum of proportional set sizes
  bool replicas_identical = false;
  std::string weights_sha256;  // docs/guide/training.md says over what
  std::int64_t verified = 0;   // steps whose weights were those of `verify_log`
  std::string checkpoint;      // the file, if there is one
};

// What happens while it trains; called on every worker, with the same numbers, times excepted.
struct TrainerHooks {
  // Before an update: param.grad holds the averages. They are worked out for it, which costs a pass
  // over memory; without it they may never exist. Called again for steps that are replayed.
  std::function<void(std::int64_t step)> on_gradients;
  std::function<void(const StepRecord&)> on_step;
  std::function<void(std::int64_t epoch, const Evaluation&)> on_epoch;
  std::function<void(const std::string& path, std::int64_t step)> on_checkpoint;
};

// Threads:   one caller at a time; request_stop() from anywhere, a signal handler too. Workers that
//            are threads of one process take turns in `loss`, because LibTorch's generator belongs
//            to the process: it must not wait for another worker there.
// Blocking:  run(), until the job is done or told to stop.
// Failure:   BadInput for options or files that do not fit, and for a loss that is not finite;
//            Unavailable when a checkpoint cannot be written; PeerLost, Timeout; Mismatch when workers differ, also
//            in what they have computed or in a bit that nobody wrote, naming step, parameter and worker.
//            LibTorch's generators are seeded when run() has ended, by the job and its steps alone.
// Ownership: shares the parts; the world outlives it. Where workers share memory the model's
//            parameters exist once per host from its construction on: no worker writes to them alone.
class Trainer {
 public:
  Trainer(World& world, TrainerParts parts, TrainerOptions options, TrainerHooks hooks = {});
  ~Trainer();

  std::int64_t steps_per_epoch() const;
  std::int64_t total_steps() const;

  // Collective: every worker runs the same job. Once.
  TrainingResult run();

  // Number of shards of each global batch; the default if the option was 0.
  int shards() const;

  // All workers stop after the same step, soon; run() then writes a checkpoint and returns.
  void request_stop() noexcept;

  // Over the test data. Collective.
  Evaluation evaluate();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
