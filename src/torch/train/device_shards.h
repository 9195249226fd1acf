// Forward and backward of shards on a GPU: queued there, while the host goes on.
//
//   eager    LibTorch queues one kernel after the other
//   replay   what an eager pass queues is captured once, as a graph, and queued again as a whole: for every shard with as
//            many samples, with its own samples, seed and weight. The first, second, fourth, eighth … time its loss is
//            compared with that of a forward pass
//
// Losses come back a step later, so that nobody waits for the GPU before it has been given more to do. The update writes
// them to the host: no stream waits for another, which costs more than a kernel.
#pragma once

#include <lockstep/data.h>
#include <lockstep/deadline.h>
#include <lockstep/trainer.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "torch/device/device.h"
#include "torch/kernels/device_update.h"
#include "torch/replica/device_pass.h"
#include "torch/replica/replicated.h"

namespace lockstep::train {

// Threads:   one caller at a time, always with the same current stream.
// Blocking:  losses(), until the GPU has run the step; run() with a capture; the destructor, until nothing writes losses.
// Failure:   what the loss throws; BadInput for one that is not what it was when it was captured. What cannot be captured runs eagerly, and counts() says why. Timeout from losses().
// Ownership: borrows the model; owns the graph and the memory of its tensors.
class DeviceShards {
 public:
  using Loss = std::function<torch::Tensor(const Batch&)>;
  struct Size {
    std::int64_t hosted = 0;   // shards of this worker
    std::int64_t samples = 0;  // of a full one: what is captured
  };
  DeviceShards(replica::Replicated& model, Loss loss, bool graphs, Size size);
  ~DeviceShards();
  DeviceShards(const DeviceShards&) = delete;
  DeviceShards& operator=(const DeviceShards&) = delete;

  void begin_step();
  // A batch on the GPU. The model is told as by backward(): it adds up, or reduces.
  void run(const Batch& batch, int shard, std::uint64_t seed, double weight);
  // Between the last shard and end_step() an update must take it along, on the same stream.
  kernels::Note note();
  void end_step();

  // Of the last step that has ended and was not asked for: each shard's loss times its weight.
  std::map<int, double> losses(Deadline deadline);

  const ShardCounts& counts() const { return counts_; }

 private:
  // What was copied into the graph's input last, and as it was then.
  struct Copied {
    torch::Tensor tensor;
    std::int64_t version = 0;
  };
  struct Replay {
    device::Graph graph;
    Batch input;  // what is in these tensors is what a replay sees
    struct {
      Copied data;
      Copied target;
    } copied;
    torch::Tensor weight;
    double weight_is = 0;
    torch::Tensor loss;
    replica::ShardPass::Captured captured;
  };
  // What a step has left for the host to read.
  struct Record {
    torch::Tensor losses;  // by place; in pinned memory
    std::vector<std::pair<int, double>> weights;
    device::Event done;
  };

  torch::Tensor run_eagerly(const Batch& batch, std::uint64_t seed, double weight);
  torch::Tensor replay(const Batch& batch, std::uint64_t seed, double weight);
  void capture(const Batch& batch, std::uint64_t seed);
  torch::Tensor loss_alone(const Batch& batch, std::uint64_t seed);
  static void check(const torch::Tensor& replayed, const torch::Tensor& expected);
  void keep(const torch::Tensor& loss, Record& record);
  bool fits(const Batch& batch) const;
  static void copy_input(const torch::Tensor& from, torch::Tensor& to, Copied& last);

  replica::Replicated& model_;
  Loss loss_;
  bool graphs_;
  Size size_;
  int warm_up_ = 0;       // eager passes so far
  torch::Tensor weight_;  // of one of them
  std::optional<Replay> replay_;
  std::array<std::optional<Record>, 2> records_;  // of even and odd steps
  std::size_t step_ = 0;
  torch::Tensor losses_;  // of the step under way, by place; of one shard, where it was computed
  ShardCounts counts_;
};

}  // namespace lockstep::train
