// The common part of runners that wait for their shards: the losses and metrics of a step are known as soon as these have run.
#pragma once

#include <map>
#include <set>
#include <string>

#include "torch/step/shard_runner.h"

namespace lockstep::steps {

// Threads, Blocking, Failure, Ownership: as ShardRunner.
class HostRunner : public ShardRunner {
 public:
  void begin_step() override { local_ = {}; }
  flat::Note note() override { return {}; }
  void end_step() override {}
  const std::set<std::string>& metrics() const override { return metrics_; }
  std::optional<PhaseResult::Local> known() override { return local_; }
  PhaseResult::Local bring(Deadline) override { return local_; }
  std::map<int, double> losses(Deadline) override { return local_.weighted_losses; }
  const ShardCounts& counts() const override { return counts_; }

 protected:
  // Where one shard reports.
  class Desk : public Reports {
   public:
    Desk(HostRunner& owner, int shard) : owner_(owner), shard_(shard) {}
    void add(const std::string& name, const torch::Tensor& sum,
             const torch::Tensor& weight) override {
      add(name, sum.item<double>(), weight.item<double>());
    }
    void add(const std::string& name, double sum, double weight) override;

   private:
    HostRunner& owner_;
    int shard_;
  };

  void put_loss(const Turn& turn, double loss) {
    local_.weighted_losses[turn.shard.index] = turn.weight * loss;
  }

 private:
  PhaseResult::Local local_;
  std::set<std::string> metrics_;
  ShardCounts counts_;
};

// The backward pass of a shard's round. What it has changed is its gradient: what the round began with, less what the inner model
// has now; or, if a fragment is exchanged while the round trains, less what the shard had then. It is seeded with the shard's
// weight, as other shards do. (local_shards.cpp)
void hand_over(const ShardWork& work, Turns& turns, const Turn& whole);

// The loss of a shard, checked, with the random numbers of its seed. (host_shards.cpp)
torch::Tensor seeded_loss(const ShardWork& work, const Turn& turn);

}  // namespace lockstep::steps
