// One step of a job: a loss over every shard, one reduction, one update.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/job.h>
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
// Threads:   the one that called the Step.
// Blocking:  never.
// Failure:   report() throws BadInput for a name that is used twice for a shard.
// Ownership: valid while the loss runs.
struct Shard {
  Batch batch;  // its samples, on world.device(); at least one
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int index = 0;  // 0 … count − 1
  int count = 0;  // of the job
  int phase = 0;  // how many Steps were called on this batch before

  // For Outcome::metric(): the sum over all shards of `sum` divided by that of `weight`, such as right answers and
  // answers. Without a weight it is the shard's number of samples. The names that a Step reports are those of its first
  // call, on any shard. A tensor has one element, and is not waited for; a number of the host keeps a GPU's pass from
  // being captured as a CUDA graph.
  void report(const std::string& name, const torch::Tensor& sum) const;
  void report(const std::string& name, const torch::Tensor& sum, const torch::Tensor& weight) const;
  void report(const std::string& name, double sum, double weight) const;

  steps::Reports* reports = nullptr;  // of the Step
};

struct StepOptions {
  // What the result means.

  // Models that the loss reads and no Step of this job trains, such as a teacher: their buffers follow the job's rule, and
  // they are kept in checkpoints. Those that other Steps train are known.
  std::vector<Replica*> models = {};

  // How much a shard's loss counts, above 0, such as its tokens without padding; none: its samples. The step follows
  // the mean over the global batch, weighted so. Called on the worker that hosts the shard.
  // Backward begins with it: near 1, say tokens over their most, where the loss is of a half type.
  std::function<double(const Shard&)> weight = {};

  // Of a step, for all optimizers of this Step; none: what they have, which may be set between batches, the same on every
  // worker, and is kept in checkpoints.
  std::function<double(std::int64_t step)> learning_rate = {};

  // Before an update: param.grad holds the averages. They are worked out for it, which costs a pass over memory; without
  // it they may never exist. Called again for steps that are replayed.
  std::function<void(std::int64_t step)> before_update = {};

  // How fast it comes. On a GPU: what a shard queues is captured as a CUDA graph and replayed, where it can be. BadInput
  // for a loss that is seen to depend on more than its batch, the models, the seed and tensors of the GPU.
  bool cuda_graphs = true;
};

// What came of a Step's call.
//
// Threads:   that of the job.
// Blocking:  loss() and metric() wait until the numbers of all workers are here, at most the world's timeout. On a CPU
//            they are on their way already; on a GPU the first of them to be called after a Step is collective.
// Failure:   PeerLost, Timeout; BadInput for a metric that nobody reported.
// Ownership: a value; may be kept and asked at any time later.
class Outcome {
 public:
  Outcome() = default;
  explicit Outcome(std::shared_ptr<steps::PhaseResult> result);

  std::int64_t step = 0;
  int phase = 0;
  bool skipped = false;  // no update was made
  int repeats = 0;       // how often the step was run again

  double loss() const;  // the weighted mean over all shards; the same bits on every worker
  double metric(const std::string& name) const;

 private:
  std::shared_ptr<steps::PhaseResult> result_;
};

// How the shards of a worker ran on its GPU.
struct ShardCounts {
  std::int64_t replayed = 0;  // as a CUDA graph
  std::int64_t eager = 0;
  std::string reason;  // why some were eager that might have been replayed; empty: none
};

// A loss and the optimizers that follow it. A call runs forward and backward of every shard, each on the worker that
// hosts it, adds the gradients up in the order of the job's tree and updates all listed optimizers' models. Gradients go
// to these models alone.
//
// Several calls on one batch, of one Step or of several, are its phases 0, 1, 2 …: an update each, with random numbers of
// its own. A GAN has two:
//
//   for (const auto& batch : job.batches(data, {.epochs = 5})) { d_step(batch); g_step(batch); }
//
// The contract of the loss: it
//   - may run again for the same step and shard, on any worker, and on a GPU it may run only while it is captured;
//   - reads only what is equal on all workers: its shard, the job's models, constants;
//   - draws random numbers only from LibTorch's default generator, which is seeded for (job, step, phase, shard);
//   - writes to nothing but buffers of the job's models, and reports numbers through Shard::report();
//   - returns a mean over its batch, of one element, and lets exceptions pass;
//   - waits for no other worker: those that are threads of one process take turns in it.
// Between batches the program may set learning rates, evaluate and save.
//
// Threads:   one caller at a time, over all that belongs to a world.
// Blocking:  the call is collective: every worker makes the same calls in the same order, and waits for the others, at
//            most the world's timeout.
// Failure:   the constructor: BadInput for optimizers that do not fit, a name that is taken, or a job whose batches() has
//            been called. The call: what the loss throws, BadInput for a gradient that is missing, a weight that is none
//            or a loss that is not finite, which is found one call later; Mismatch when workers differ; PeerLost, Timeout.
//            After a failure the job is of no further use: make it again, and it goes on from its checkpoint.
// Ownership: shares the job; the optimizers, their models and what the loss refers to outlive the job's loops. Where
//            workers share memory the parameters exist once per host from batches() on: no worker writes to them alone.
class Step {
 public:
  using Loss = std::function<torch::Tensor(const Shard&)>;

  Step(Job& job, const std::string& name, const std::vector<optim::Optimizer*>& optimizers,
       Loss loss, StepOptions options = {});
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // With the batch that the job is at.
  Outcome operator()(const GlobalBatch& batch);

  const std::string& name() const;

 private:
  std::shared_ptr<steps::JobCore> job_;
  steps::StepCore* core_;  // the job's
};

}  // namespace lockstep
