// The Trainer runs the whole loop: steps, learning rate, checkpoints, evaluation and a report.
#pragma once

#include <lockstep/data.h>
#include <lockstep/data_parallel.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/job.h>
#include <lockstep/noise_scale.h>
#include <lockstep/optim.h>
#include <lockstep/schedule.h>
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

// What is trained. Each function gets the batch of one shard.
struct TrainerParts {
  Replica model;
  std::shared_ptr<torch::nn::Module> module;  // switched between train() and eval()
  std::shared_ptr<optim::Optimizer> optimizer;
  DatasetPtr train;
  DatasetPtr test;                                  // none: no evaluation
  std::function<torch::Tensor(const Batch&)> loss;  // a mean over the batch; see Threads below
  std::function<Score(const Batch&)> score;         // none: no evaluation
  std::function<double(std::int64_t)>
      learning_rate;  // of a step; none: the optimizer's own rate, which checkpoints keep

  // The weight of a shard's loss, above 0: its number of tokens without padding, for example. None:
  // its number of samples. The step follows the weighted mean over the global batch. Called with
  // the shard's batch on the worker that hosts the shard. Backward starts from this number. So keep
  // it near 1 if the loss has a half type: divide the tokens by the largest number that a shard can
  // have.
  std::function<double(const Batch&)> weight;

  // Lowers the optimizer's rate when the loss of the evaluation after every epoch has stopped
  // getting better. Checkpoints keep its state. It wants an evaluation, and no learning_rate.
  std::shared_ptr<ReduceLROnPlateau> plateau;
};

struct TrainerOptions {
  // What the result means.
  std::int64_t steps = 0;         // steps of the whole job. Set either steps …
  std::int64_t epochs = 0;        // … or epochs
  std::int64_t global_batch = 0;  // samples of one step; a multiple of the number of shards
  int shards = 0;  // shards of a global batch, at least as many as workers. The result does not
                   // depend on the number of workers. 0: the shards of the checkpoint; without one,
                   // by `accumulate`; without that, default_shards()
  int accumulate = 0;      // shards per worker at the start of the job
  std::uint64_t seed = 0;  // decides the order of samples and the random numbers of every shard
  ShardBufferRule buffers = ShardBufferRule::kFirstShard;
  LocalSteps local_steps = {};  // as JobOptions::local_steps: a step of the loop is a round then
  std::optional<GradScalerOptions> scaler;  // for float16; see StepOptions::scaler
  WeightedSampling weighted = {};           // draws samples by weight
  std::int64_t noise_scale_every = 0;       // steps; 0: never. As StepOptions::noise_scale_every
  // Everything else that decides the result; kept in checkpoints. The Trainer adds the arithmetic
  // that the process has when the Trainer is made: threads, oneDNN, denormals …
  std::map<std::string, std::string> job;

  // How fast it comes.
  int loader_threads = 1;
  int prefetch = 2;

  // On a GPU, what a shard queues is captured as a CUDA graph and replayed, if that is possible.
  // The bits are the same if the loss depends only on its batch, the model, the seed and tensors of
  // the GPU. Throws BadInput if the loss is seen to depend on more, such as a coefficient that the
  // host changes.
  bool cuda_graphs = true;

  // Looks for bits that changed though nobody wrote them. Updates compare what they read with what
  // was written, and workers compare their copies, step by step (docs/internals/numerics.md). Do
  // not write to parameters in a loss or a hook: the check takes that for such a change.
  bool check_divergence = true;

  // `hash_log`: a file that gets the hashes of all weights after every step. `verify_log`: the hash
  // log of another run, to compare with. Only the steps in that log are run then, none after
  // `verify_until`, and no checkpoint is written. Empty: no such file.
  std::string hash_log;
  std::string verify_log;
  std::int64_t verify_until = -1;  // a step; −1: to the end of the log

  // When it becomes true, the job stops as after request_stop(). For signal handlers. May be null.
  const std::atomic<bool>* stop = nullptr;

  // The run directory: it has the last checkpoints, so many. It belongs to this job until run() has
  // ended; another job that wants to write there is refused. Empty: no checkpoints. Set at most one
  // of the intervals; if both are 0, a checkpoint is written at the end of every epoch.
  std::string checkpoint_directory;
  std::int64_t checkpoint_every_steps = 0;
  double checkpoint_every_seconds = 0;  // by rank 0's clock, after a step
  int keep_checkpoints = 2;
  ExistingCheckpoint existing_checkpoint = ExistingCheckpoint::kRefuse;

  // Checkpoints say which data the job began with. A job that goes on from a checkpoint compares
  // its data with that, and workers compare theirs with each other. False: they compare 64 samples
  // spread over the data set. True: all samples, which are read once at the start.
  bool verify_data = false;
};

struct StepRecord {
  std::int64_t step = 0;   // from 0; of a round, the first
  std::int64_t steps = 1;  // of the round
  std::int64_t epoch = 0;
  double loss = 0;  // over all shards, and all steps of the round
  double lr = 0;
  double step_ms = 0;
  double exposed_comm_ms = 0;  // the time that waiting for other workers added to the step
  bool skipped = false;        // by the scaler: gradients had overflowed
  double dropped = 0;          // with backups: the part of the gradients that did not count
  std::optional<NoiseScale> noise_scale = {};  // after this step; none if it is not measured
  // The leader before has died, and nobody knows whether it was called for this step. This worker,
  // which leads now, has been called for it, or is one of those that go on after all had died.
  bool again = false;
};

struct TrainingResult {
  std::int64_t first_step = 0;       // where this run began: 0, or the position of the checkpoint
  std::int64_t steps = 0;            // steps of the job that are done
  int shards = 0;                    // of the job
  ShardCounts shard_counts;          // how the shards of this worker ran on its GPU
  bool stopped = false;              // by request_stop()
  std::optional<double> final_loss;  // none if no step was run
  std::int64_t skipped_steps = 0;    // of this run, by the scaler
  double dropped = 0;                // with backups: the part of the gradients that did not count
  std::optional<double> loss_scale;  // the scaler's, after the last step; none without a scaler
  std::optional<NoiseScale> noise_scale;  // after the last step; none if it is not measured
  std::optional<Evaluation> evaluation;
  double seconds = 0;  // spent in steps
  double samples_per_second = 0;
  double step_ms_p50 = 0;
  double step_ms_p95 = 0;
  double exposed_comm_ms_p50 = 0;
  std::size_t memory_bytes = 0;  // of all workers together: the sum of proportional set sizes
  bool replicas_identical = false;
  std::string weights_sha256;  // docs/guide/training.md says over what
  std::int64_t verified = 0;   // steps whose weights were equal to those of `verify_log`
  std::string checkpoint;      // the newest file, if there is one
};

// Functions that the Trainer calls during training. They are called on every worker, with the same
// numbers except times. If workers leave and join, on_step is called in the order of steps; for
// every step on the worker that leads then, elsewhere once at most.
struct TrainerHooks {
  // As StepOptions::before_update.
  std::function<void(std::int64_t step)> on_gradients;
  std::function<void(const StepRecord&)> on_step;
  std::function<void(std::int64_t epoch, const Evaluation&)> on_epoch;
  // When the file is on the disk: some steps after the one whose state it has.
  std::function<void(const std::string& path, std::int64_t step)> on_checkpoint;
};

// Trains one model with one optimizer from the first step, or from a checkpoint, to the last.
//
// Threads:   one caller at a time; request_stop() from any thread and from a signal handler.
//            Workers that are threads of one process run `loss` one after the other, because
//            LibTorch's generator belongs to the process. So `loss` must not wait for another
//            worker.
// Blocking:  run() blocks until the job is done or told to stop.
// Failure:   BadInput for options or files that do not fit, and for a loss that is not finite;
//            Unavailable if a checkpoint cannot be written; PeerLost, Timeout; Mismatch if workers
//            differ. If they differ in what they have computed, or in a bit that nobody wrote, the
//            Mismatch names step, parameter and worker. When run() has ended, LibTorch's generators
//            have seeds that depend only on the job and its steps.
// Ownership: shares the parts. The world must outlive it. While it runs, only it may write to
//            parameters.
class Trainer {
 public:
  Trainer(World& world, TrainerParts parts, TrainerOptions options, TrainerHooks hooks = {});
  ~Trainer();

  std::int64_t steps_per_epoch() const;
  std::int64_t total_steps() const;

  // Runs the job. Collective: every worker runs the same job. Call it once.
  TrainingResult run();

  // Number of shards of each global batch; the default if the option was 0.
  int shards() const;

  // What workers reduce: the gradients of the model; with local steps, the differences of a second
  // one, which has the weights of the last exchange.
  const Replica& reduced() const;

  // All workers stop soon, after the same step. run() then writes a checkpoint and returns.
  void request_stop() noexcept;

  // Evaluates the model on the test data. Collective.
  Evaluation evaluate();

 private:
  struct State;
  std::unique_ptr<State> state_;
  bool has_run_ = false;
};

}  // namespace lockstep
