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

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "torch/device/device.h"
#include "torch/step/shard_runner.h"

namespace lockstep::train {

// Threads:   one caller at a time, always with the same current stream.
// Blocking:  bring(), until the GPU has run the step; run() with a capture; the destructor, until nothing writes losses.
// Failure:   what the loss throws; BadInput for one that is not what it was when it was captured. What cannot be captured runs eagerly, and counts() says why. Timeout from bring().
// Ownership: borrows the models; owns the graph and the memory of its tensors.
class DeviceShards : public ShardRunner, private Reports {
 public:
  explicit DeviceShards(ShardWork work);
  ~DeviceShards() override;
  DeviceShards(const DeviceShards&) = delete;
  DeviceShards& operator=(const DeviceShards&) = delete;

  void begin_step() override;
  // The models are told as by backward(): they add up, or reduce.
  void run(Turn& turn) override;
  kernels::Note note() override;
  void end_step() override;
  const std::set<std::string>& metrics() const override { return metrics_; }
  std::optional<PhaseResult::Local> known() override { return std::nullopt; }
  PhaseResult::Local bring(Deadline deadline) override;
  const ShardCounts& counts() const override { return counts_; }

 private:
  // What was copied into the graph's input last, and as it was then.
  struct Copied {
    torch::Tensor tensor;
    std::int64_t version = 0;
  };
  // What a loss has reported: names, and a sum and a weight for each.
  struct Reported {
    std::vector<std::string> names;
    std::vector<torch::Tensor> values;
  };
  struct Replay {
    Replay() {
    }  // NOLINT: clang 14 does not see a defaulted one where std::optional<Replay> is a member
    device::Graph graph;
    Batch input;  // what is in these tensors is what a replay sees
    struct {
      Copied data;
      Copied target;
    } copied;
    torch::Tensor weight;
    double weight_is = 0;
    torch::Tensor loss;
    Reported reported;
    std::vector<replica::ShardPass::Captured> captured;  // by model
  };
  // What a step has left for the host to read.
  struct Record {
    struct OfShard {
      int shard = 0;
      double weight = 0;
      std::vector<std::string> names;  // of metrics
    };
    torch::Tensor
        numbers;  // each shard's loss, then its metrics' sums and weights; in pinned memory
    std::vector<OfShard> shards;
    device::Event done;
  };

  void add(const std::string& name, const torch::Tensor& sum, const torch::Tensor& weight) override;
  void add(const std::string& name, double sum, double weight) override;
  torch::Tensor loss_of(const Shard& shard, std::uint64_t seed);
  torch::Tensor run_eagerly(const Turn& turn);
  torch::Tensor replay(const Turn& turn);
  void capture(const Turn& turn);
  torch::Tensor loss_alone(const Turn& turn);
  static void check(const torch::Tensor& replayed, const torch::Tensor& expected);
  void keep(const torch::Tensor& loss);
  void keep_with_reports(const torch::Tensor& loss);
  static std::int64_t count_in(const Record& record);
  bool fits(const Batch& batch) const;
  Device device() const { return work_.models.front()->model().device(); }
  static void copy_input(const torch::Tensor& from, torch::Tensor& to, Copied& last);

  ShardWork work_;
  int warm_up_ = 0;       // eager passes so far
  torch::Tensor weight_;  // of one of them
  Reported reported_;     // by the shard that runs
  bool capturing_ = false;
  std::optional<Replay> replay_;
  std::array<std::optional<Record>, 2> records_;  // of even and odd steps
  std::size_t step_ = 0;
  torch::Tensor
      numbers_;  // of the step under way; of one shard without metrics, where its loss was computed
  std::set<std::string> metrics_;
  ShardCounts counts_;
};

}  // namespace lockstep::train
