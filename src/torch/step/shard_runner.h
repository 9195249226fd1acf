// How the shards of a Step run on this worker, and how their losses and metrics come back.
#pragma once

#include <lockstep/deadline.h>
#include <lockstep/step.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "flat/device_update.h"
#include "plan/tree.h"
#include "torch/step/local_model.h"
#include "torch/step/model_step.h"
#include "torch/step/phase_result.h"
#include "torch/step/reports.h"

namespace lockstep::steps {

// The turn of one shard.
struct Turn {
  Shard shard;
  std::uint64_t seed = 0;
  double weight = 0;
  double scale = 1;       // multiplies the weight, for backward only
  bool measured = false;  // the norm of its gradient is taken, so hooks must hear of each gradient
};

// The shards of this worker in one phase, and what the Step does around each. A runner takes them in order. A shard
// without samples has no forward and no backward, but before_backward() is called for it.
class Turns {
 public:
  virtual ~Turns() = default;
  virtual plan::ShardRange hosted() const = 0;
  // Whether every worker has a shard with samples.
  virtual bool everywhere() const = 0;

  // With local steps: of the round. Else 1.
  virtual std::int64_t steps() const = 0;
  virtual std::int64_t first_step() const = 0;
  // The models that are updated: all, or one fragment of each, which a round of a streamed model exchanges (LocalModel::kAll
  // means all).
  virtual const std::vector<ModelStep*>& models() const = 0;
  virtual int exchanged() const = 0;
  // Of a step of the round, from 0 on; reads its batch. In asynchronous rounds of any shard, else of the hosted ones in order.
  virtual Turn take(int shard, std::int64_t step) = 0;
  virtual std::int64_t samples(int shard,
                               std::int64_t step) const = 0;  // the same, without reading
  virtual Turn whole(int shard) = 0;  // its part of the round: its samples and its weight
  virtual void before_forward() = 0;  // gives the buffers the values that shards begin with
  virtual void forward_done(const Turn& turn) = 0;     // the buffers are as the shard leaves them
  virtual void before_backward(const Turn& turn) = 0;  // chooses the bank; says who reduces
  // All hosted shards have given their gradients: what no backward has reduced is reduced now. At the latest when run() ends.
  virtual void all_given() = 0;
  virtual void ended() = 0;  // all of its work is done, or queued
};

// One turn after the other: run_one(turn) for a shard with samples.
template <typename RunOne>
void run_in_order(Turns& turns, const RunOne& run_one) {
  for (int shard = turns.hosted().begin; shard < turns.hosted().end; ++shard) {
    Turn turn = turns.take(shard, 0);
    if (turn.shard.batch.samples > 0)
      run_one(turn);
    else
      turns.before_backward(turn);
    turns.ended();
  }
}

// Runs forward and backward of shards: HostShards on a CPU, DeviceShards on a GPU, ShardsInStep, LocalShards and
// AsynchronousShards on either.
//
// Threads:   one caller at a time; on a GPU always with the same current stream.
// Blocking:  run(), until forward and backward have run; on a GPU until they are queued. ShardsInStep waits for other
//            workers there, and in known() until a GPU has run the step; bring() waits for that, too. AsynchronousShards wait
//            for the whole round in run(), also on a GPU.
// Failure:   what the loss throws; BadInput, with step and shard, for what LibTorch refuses.
// Ownership: the StepRun owns it; it borrows the models.
class ShardRunner {
 public:
  virtual ~ShardRunner() = default;

  virtual void begin_step() = 0;
  virtual void run(Turns& turns) = 0;
  // Bytes that the update copies to the host on its way, between the last shard and end_step(). Of DeviceShards only.
  virtual flat::Note note() = 0;
  virtual void end_step() = 0;

  // Names of metrics that this worker's shards have reported so far.
  virtual const std::set<std::string>& metrics() const = 0;

  // Losses and metrics of the last step: nothing if the GPU has still to compute them; bring() waits for them.
  virtual std::optional<PhaseResult::Local> known() = 0;
  virtual PhaseResult::Local bring(Deadline deadline) = 0;
  // By shard, before end_step(): the weighted losses of the step under way. Waits for a GPU, until it has done all that
  // is queued so far.
  virtual std::map<int, double> losses(Deadline deadline) = 0;

  virtual const ShardCounts& counts() const = 0;
  // How long the last run() has waited for other workers, if it knows.
  virtual std::chrono::nanoseconds waited() const { return {}; }
};

// What a Step's shards run with.
struct ShardWork {
  Step::Loss loss;
  std::vector<ModelStep*> models;           // that are trained
  std::vector<torch::Tensor> inputs;        // get gradients; empty: all that the loss depends on
  std::vector<NamedTensor> tensors;         // parameters and buffers of all models of the job
  std::vector<NamedTensor> buffers;         // of them
  std::vector<torch::Tensor> buffer_bytes;  // the same on a GPU, as bytes
  bool graphs = true;                       // CUDA graphs may be used
  Generation* generation = nullptr;
  std::int64_t samples = 0;  // of a full shard
  // With local steps: what shards train; `models` are then their outer models. And the learning rate of each step, or none.
  std::vector<std::shared_ptr<LocalModel>> locals;
  std::function<double(std::int64_t step)> learning_rate;
  // With asynchronous steps: their rule, and a digest of the job, which their order names.
  struct Shared {
    Asynchronous rule;
    std::string job;
  };
  std::optional<Shared> shared;
};

// The runner for the device of the models. (device_choice.cpp)
std::unique_ptr<ShardRunner> make_shard_runner(ShardWork work);

// Runs what a program does in a step outside of shards: the random numbers that it draws there are those of the seed.
// (device_choice.cpp)
void run_seeded(std::uint64_t seed, Device device, const std::function<void()>& work);

// On a CPU: one shard after the other, and all is known at once. (host_shards.cpp)
std::unique_ptr<ShardRunner> make_host_shards(ShardWork work);

// For models with batch norms that share their statistics: all shards at the same time. (shards_in_step.cpp)
std::unique_ptr<ShardRunner> make_shards_in_step(ShardWork work);

// With local steps: the gradient of a shard is what a round has changed. (local_shards.cpp)
std::unique_ptr<ShardRunner> make_local_shards(ShardWork work);

// With asynchronous steps: workers share the shards of a round. (asynchronous_shards.cpp)
std::unique_ptr<ShardRunner> make_asynchronous_shards(ShardWork work);

// On a GPU: shards are queued, and the host goes on. (device_shards.cpp)
std::unique_ptr<ShardRunner> make_device_shards(ShardWork work);

// BadInput if this is nothing that backward can begin with.
void check_loss(const torch::Tensor& loss, const Shard& shard);

// What backward begins with: the loss; with a scale that of float32, because a scale may be too large for a half type.
torch::Tensor backward_root(const torch::Tensor& loss, const Turn& turn);

// loss.backward(weight), which computes the gradients of work.inputs only. No other pass may reach the models.
void weighted_backward(const ShardWork& work, const torch::Tensor& loss,
                       const torch::Tensor& weight);

}  // namespace lockstep::steps
