// Numbers about steps: the loss over all workers, without waiting for it, and percentiles.
#pragma once

#include <lockstep/comm.h>

#include <map>
#include <vector>

namespace lockstep::train {

// One small all-reduce a step, which travels while the next step computes.
//
// Threads:   one caller at a time.
// Blocking:  finish(), at most the Comm's timeout.
// Failure:   that of the reduction.
// Ownership: owns its channel.
class StepMetrics {
 public:
  explicit StepMetrics(Comm channel) : channel_(std::move(channel)) {}

  struct Local {
    std::map<int, double> weighted_losses;  // by hosted shard
    bool stop = false;
  };
  struct Global {
    double loss = 0;    // the weighted mean, added up as the tree over shards
    bool stop = false;  // some worker was told to stop
  };

  // `total` is the sum of the weights of all `shards`.
  void start(const Local& local, int shards, double total);
  Global finish();
  bool pending() const { return pending_; }

 private:
  Comm channel_;
  std::vector<double> losses_;  // by shard; last, how many were told to stop
  double total_ = 0;
  Work work_;
  bool pending_ = false;
};

// The smallest of the values that at least this part of them does not exceed; 0 for none.
double percentile(std::vector<double> values, double part);

}  // namespace lockstep::train
