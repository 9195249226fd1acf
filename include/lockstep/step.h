// One step of a job: a loss over every shard, one reduction, one update.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/job.h>
#include <lockstep/noise_scale.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

namespace steps {
class Reports;
class PhaseResult;
class StepCore;
}  // namespace steps

// One shard of a global batch, as a loss sees it.
//
// Threads:   the thread that called the Step; with SyncBatchNorm a thread of the shard's own, one at
//            a time.
// Blocking:  never.
// Failure:   report() throws BadInput if a name is used twice for a shard.
// Ownership: valid while the loss runs.
struct Shard {
  Batch batch;  // its samples, on world.device(); at least one
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int index = 0;  // 0 … count − 1
  int count = 0;  // number of shards of the job
  int phase = 0;  // how many Steps were called on this batch before

  // Reports a number for Outcome::metric(), which is the sum of `sum` over all shards divided by
  // the sum of `weight`: right answers and answers, for example. Without `weight` it is the shard's
  // number of samples. The names of a Step are those that any shard reported in its first call. A
  // tensor has one element, and the host does not wait for it. On a GPU prefer tensors: a pass that
  // reports a number of the host cannot be captured as a CUDA graph.
  void report(const std::string& name, const torch::Tensor& sum) const;
  void report(const std::string& name, const torch::Tensor& sum, const torch::Tensor& weight) const;
  void report(const std::string& name, double sum, double weight) const;

  steps::Reports* reports = nullptr;  // where the Step collects them
};

struct StepOptions {
  // What the result means.

  // Models that the loss reads and that no Step of this job trains. Their buffers follow the job's
  // rule, and checkpoints keep them. Models that other Steps train need not be listed. Nor need a
  // frozen one, such as a teacher in eval(), which is not wrapped in data_parallel() either.
  std::vector<Replica*> models = {};

  // The weight of a shard's loss, above 0: its number of tokens without padding, for example. None:
  // its number of samples. The step follows the weighted mean over the global batch. Called on the
  // worker that hosts the shard. Backward starts from this number. So keep it near 1 if the loss
  // has a half type: divide the tokens by the largest number that a shard can have.
  std::function<double(const Shard&)> weight = {};

  // The learning rate of a step, for all optimizers of this Step. None: each optimizer's own rate.
  // A program may set that between batches, to the same value on every worker, and checkpoints keep
  // it.
  std::function<double(std::int64_t step)> learning_rate = {};

  // Scales the loss of every shard, and divides the gradients by its scale before they are clipped.
  // If a gradient of any shard is not finite, the step updates none of its optimizers: it is done,
  // its Outcome says `skipped`, and the scale becomes smaller. Checkpoints keep the state. It costs
  // one more pass over the gradients. It must outlive the job.
  GradScaler* scaler = nullptr;

  // Every so many steps the gradients of single shards are measured, for Outcome::noise_scale(); 0:
  // never. It changes no bit of the weights, and costs a pass over the gradients of each shard in such
  // a step. Steps whose shards do not all have equally many samples are left out, and so are steps
  // that a scaler skips. A part of the job: checkpoints keep the averages. BadInput with `weight`,
  // with clipping by value, and for a job of one shard. 16 is a good number.
  std::int64_t noise_scale_every = 0;

  // Called before an update, when param.grad has the averages. The averages are computed for this
  // call, which costs a pass over memory; without it they may never exist. With a scaler they are
  // still multiplied by its scale. Called again if a step is run again. Random numbers that it draws
  // from LibTorch's default generator are the same on every worker; on a CPU torch::manual_seed()
  // does not change them.
  std::function<void(std::int64_t step)> before_update = {};

  // How fast it comes. On a GPU, what a shard queues is captured as a CUDA graph and replayed, if
  // that is possible. Throws BadInput if the loss is seen to depend on more than its batch, the
  // models, the seed and tensors of the GPU.
  bool cuda_graphs = true;
};

// The result of one call of a Step.
//
// Threads:   the thread that uses the job.
// Blocking:  loss(), metric() and noise_scale() wait until the numbers of all workers are here, at most the
//            world's timeout. On a CPU the numbers are already on their way. On a GPU the first
//            call of loss() or metric() after a Step is collective.
// Failure:   PeerLost, Timeout; BadInput for a metric that no shard reported, and for a noise scale
//            that is not measured.
// Ownership: a value. It may be kept and read at any later time.
class Outcome {
 public:
  Outcome() = default;
  explicit Outcome(std::shared_ptr<steps::PhaseResult> result);

  std::int64_t step = 0;
  int phase = 0;
  bool skipped = false;  // no update was made; with a scaler, because gradients had overflowed
  int repeats = 0;       // how many times the step was run again
  double dropped = 0;    // with backups: the part of the gradients that did not count

  double loss() const;  // the weighted mean over all shards; the same bits on every worker
  double metric(const std::string& name) const;
  // After this step, for one of the Step's optimizers. With SyncBatchNorm it is approximate, because
  // the shards of a step are not independent.
  NoiseScale noise_scale(std::size_t optimizer = 0) const;

 private:
  std::shared_ptr<steps::PhaseResult> result_;
};

// How the shards of a worker ran on its GPU.
struct ShardCounts {
  std::int64_t replayed = 0;  // as a CUDA graph
  std::int64_t eager = 0;     // without a graph
  std::string reason;  // why shards that could have been replayed ran eagerly; empty: none did
};

// A loss and the optimizers that follow it. A call runs forward and backward of every shard, each
// on the worker that hosts it. It adds the gradients in the order of the job's tree and updates the
// models of all listed optimizers. Only these models get gradients.
//
// Several calls on one batch, of one Step or of several, are the phases 0, 1, 2 … of the batch.
// Each phase is an update and has its own random numbers. A GAN has two:
//
//   for (const auto& batch : job.batches(data, {.epochs = 5})) { d_step(batch); g_step(batch); }
//
// The contract of the loss:
//   - It may run again for the same step and shard, on any worker. On a GPU it may not run at all:
//     what it queued in an earlier step is then replayed (cuda_graphs).
//   - It reads only what is equal on all workers: its shard, the job's models, constants.
//   - It draws random numbers only from LibTorch's default generator, seeded for (job, step, phase,
//     shard).
//   - It writes only to buffers of the job's models, and reports numbers through Shard::report().
//   - It returns one element, a mean over its batch, and lets exceptions through. The Step calls
//     backward(); a backward() of the loss itself is BadInput.
//   - It waits for no other worker: workers that are threads of one process run it one after the
//     other.
// Between batches the program may set learning rates, evaluate and save.
//
// Threads:   one caller at a time, for everything that belongs to a world.
// Blocking:  the call is collective: every worker makes the same calls in the same order, and waits
//            for the others, at most the world's timeout.
// Failure:   the constructor throws BadInput for optimizers that do not fit, for a name that is
//            already used, and if the job's batches() has been called. The call throws what the
//            loss throws; BadInput for a missing gradient, for a weight that is not above 0 and
//            finite, and for a loss that is not finite (found one call later), unless a scaler
//            skipped that step; Mismatch if workers differ; PeerLost, Timeout. After a failure the job cannot be used any more. Make it
//            again, and it goes on from its checkpoint.
// Ownership: shares the job. The optimizers, their models and what the loss refers to must outlive
//            the job's loops. In a loop only Lockstep may write to parameters. If workers share
//            memory, a write of the program is BadInput at the next update. What a program wrote
//            before batches() counts, if all workers wrote the same.
class Step {
 public:
  using Loss = std::function<torch::Tensor(const Shard&)>;

  Step(Job& job, const std::string& name, const std::vector<optim::Optimizer*>& optimizers,
       Loss loss, StepOptions options = {});
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // `batch` must be the job's current batch.
  Outcome operator()(const GlobalBatch& batch);

  const std::string& name() const;

 private:
  std::shared_ptr<steps::JobCore> job_;
  steps::StepCore* core_;  // belongs to the job
};

}  // namespace lockstep
