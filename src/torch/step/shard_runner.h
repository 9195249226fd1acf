// How the shards of a Step run on this worker, and how their losses and metrics come back.
#pragma once

#include <lockstep/deadline.h>
#include <lockstep/step.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "flat/device_update.h"
#include "torch/step/model_step.h"
#include "torch/step/phase_result.h"

namespace lockstep::steps {

// Where a loss reports its metrics; see Shard::report().
class Reports {
 public:
  virtual ~Reports() = default;
  virtual void add(const std::string& name, const torch::Tensor& sum,
                   const torch::Tensor& weight) = 0;
  virtual void add(const std::string& name, double sum, double weight) = 0;
};

// Runs forward and backward of shards: HostShards on a CPU, DeviceShards on a GPU.
//
// Threads:   one caller at a time; on a GPU always with the same current stream.
// Blocking:  run(), until forward and backward have run; on a GPU until they are queued. bring(), until the GPU has run
//            the step.
// Failure:   what the loss throws; BadInput, with step and shard, for what LibTorch refuses.
// Ownership: the StepRun owns it; it borrows the models.
class ShardRunner {
 public:
  virtual ~ShardRunner() = default;

  struct Turn {
    Shard shard;
    std::uint64_t seed = 0;
    double weight = 0;
    double scale = 1;                       // multiplies the weight, for backward only
    std::function<void()> forward_done;     // called when the buffers are as the shard leaves them
    std::function<void()> before_backward;  // says whether this backward reduces
  };
  virtual void begin_step() = 0;
  virtual void run(Turn& turn) = 0;
  // Bytes that the update copies to the host on its way, between the last shard and end_step(). Empty on a CPU.
  virtual flat::Note note() = 0;
  virtual void end_step() = 0;

  // Names of metrics that this worker's shards have reported so far.
  virtual const std::set<std::string>& metrics() const = 0;

  // Losses and metrics of the last step: nothing if the GPU has still to compute them; bring() waits for them.
  virtual std::optional<PhaseResult::Local> known() = 0;
  virtual PhaseResult::Local bring(Deadline deadline) = 0;

  virtual const ShardCounts& counts() const = 0;
};

// What a Step's shards run with.
struct ShardWork {
  Step::Loss loss;
  std::vector<ModelStep*> models;           // that are trained
  std::vector<torch::Tensor> inputs;        // get gradients; empty: all that the loss depends on
  std::vector<torch::Tensor> buffer_bytes;  // of all models of the job, on a GPU
  bool graphs = true;                       // CUDA graphs may be used
  std::int64_t hosted = 0;                  // shards of this worker
  std::int64_t samples = 0;                 // of a full one
};

// The runner for the device of the models. (device_choice.cpp)
std::unique_ptr<ShardRunner> make_shard_runner(ShardWork work);

// On a CPU: one shard after the other, and all is known at once. (host_shards.cpp)
std::unique_ptr<ShardRunner> make_host_shards(ShardWork work);

// On a GPU: shards are queued, and the host goes on. (device_shards.cpp)
std::unique_ptr<ShardRunner> make_device_shards(ShardWork work);

// BadInput if this is nothing that backward can begin with.
void check_loss(const torch::Tensor& loss, const Shard& shard);

// loss.backward(weight), which computes the gradients of work.inputs only. No other pass may reach the models.
void weighted_backward(const ShardWork& work, const torch::Tensor& loss,
                       const torch::Tensor& weight);

}  // namespace lockstep::steps
