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
    double mark = 0;                        // of the divergence check
    bool stop = false;
  };
  struct Global {
    double loss = 0;            // the weighted mean, added up as the tree over shards
    std::vector<double> marks;  // by worker
    bool stop = false;          // some worker was told to stop
  };

  // `total` is the sum of the weights of all `shards`.
  void start(const Local& local, int shards, double total);
  Global finish();
  bool pending() const { return pending_; }

 private:
  std::vector<double> numbers_;  // losses by shard, marks by worker, how many were told to stop
  std::size_t shards_ = 0;
  double total_ = 0;
  Work work_;
  bool pending_ = false;
  Comm channel_;  // last: it ends the operation that still uses the memory above
};

// The smallest of the values that at least this part of them does not exceed; 0 for none.
double percentile(std::vector<double> values, double part);

}  // namespace lockstep::train
