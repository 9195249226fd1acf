// The losses and metrics of a round: what the steps of each hosted shard have given, added up in the order of the steps.
//
//   host     on a CPU: known as soon as the round has ended
//   device   numbers of a GPU are added up there, so no step waits for it. The host reads the sums when the round is done
#pragma once

#include <lockstep/deadline.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "torch/step/phase_result.h"
#include "torch/step/shard_runner.h"

namespace lockstep::steps {

// Threads:   one caller at a time; on a GPU always with the same current stream.
// Blocking:  on a GPU bring() and losses(), until it has done what was queued before end_round(), or before losses().
// Failure:   BadInput for a metric that is reported twice in one step; Timeout from bring() and losses().
// Ownership: a runner owns it.
class RoundNumbers : public Reports {
 public:
  void begin_round();
  // A step of one shard, with its loss and what it reports.
  void begin_step() { reported_.clear(); }
  virtual void add_loss(const torch::Tensor& loss, double samples) {
    add_to(shard_.loss, loss, samples);
  }
  void add(const std::string& name, const torch::Tensor& sum, const torch::Tensor& weight) override;
  void add(const std::string& name, double sum, double weight) override;
  // All steps of this shard are done; it had samples in some of them.
  void end_shard(const Turn& whole);
  virtual void end_round() = 0;

  // Names of metrics so far.
  const std::set<std::string>& metrics() const { return metrics_; }
  // What the last round that has ended gave. known(): nothing if bring() has to wait for a GPU.
  virtual std::optional<PhaseResult::Local> known() = 0;
  virtual PhaseResult::Local bring(Deadline deadline) = 0;
  // The weighted losses of the round under way, by shard.
  virtual std::map<int, double> losses(Deadline deadline) = 0;
  // How steps ran on a GPU.
  const ShardCounts& counts() const { return counts_; }

 protected:
  struct Sum {
    double here = 0;
    torch::Tensor there;  // what is on a GPU, in float64; undefined: nothing is
  };
  struct Report {
    Sum sum, weight;
  };
  struct OfShard {
    int shard = 0;
    double weight = 0;
    double samples = 0;
    Sum loss;
    std::map<std::string, Report> reports;
  };
  using Round = std::vector<OfShard>;

  virtual void add_to(Sum& to, const torch::Tensor& value, double times) = 0;
  // All numbers must be here.
  static PhaseResult::Local read(const Round& round);

  Round round_;  // under way
  ShardCounts counts_;

 private:
  Report& report(const std::string& name);

  OfShard shard_;  // whose steps are under way
  std::set<std::string> reported_, metrics_;
};

// For the device of the models. (device_choice.cpp)
std::unique_ptr<RoundNumbers> make_round_numbers(Device device);

// (host_round_numbers.cpp, device_round_numbers.cpp)
std::unique_ptr<RoundNumbers> make_host_round_numbers();
std::unique_ptr<RoundNumbers> make_device_round_numbers(Device device);

}  // namespace lockstep::steps
