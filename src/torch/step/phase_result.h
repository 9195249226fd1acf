// What is known of a phase after it: its loss, reported metrics, and news for the other workers. One small all-reduce,
// which travels while the next phase computes.
#pragma once

#include <lockstep/comm.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::steps {

// Threads:   one caller at a time.
// Blocking:  wait(), at most the Comm's timeout.
// Failure:   that of the reduction.
// Ownership: its memory is used until wait() has returned, or the channel has gone: share it with the owner of the channel.
class PhaseResult {
 public:
  // Known to every worker.
  struct About {
    std::int64_t step = 0;
    int phase = 0;
    double lr = 0;  // of the first optimizer
    int shards = 0;
    double total_weight = 0;         // of all of them
    std::size_t models = 0;          // that were updated
    std::vector<std::string> names;  // of metrics
  };
  // A metric of one shard.
  struct Report {
    double sum = 0;
    double weight = 0;
  };
  // Known to this worker.
  struct Local {
    std::map<int, double> weighted_losses;                 // by hosted shard
    std::map<int, std::map<std::string, Report>> reports;  // the same, by name
    std::vector<double> marks;                             // of the divergence check, by model
    bool stop = false;
  };

  // `bring` is called once by wait(), if nobody has called start() until then: it does.
  PhaseResult(About about, std::function<void(PhaseResult&)> bring);

  const About& about() const { return about_; }

  // Collective on the channel; does not wait.
  void start(Comm& channel, const Local& local);
  // The rest is known after it.
  void wait();

  double loss() const;  // the weighted mean, added up as the tree over shards
  std::vector<double> marks(std::size_t model) const;  // by worker
  bool stop() const;                                   // some worker was told to stop
  bool unknown_metric() const;  // some worker has reported one that is not among the names
  double metric(const std::string& name) const;  // BadInput for an unknown one; NaN for no weight

 private:
  std::size_t first_of_metric(std::size_t number) const;

  About about_;
  std::function<void(PhaseResult&)> bring_;
  std::vector<double>
      numbers_;  // losses by shard; marks by model and worker; stops; unknown names; reports
  std::size_t workers_ = 0;
  Work work_;
  bool started_ = false;
  bool done_ = false;
};

}  // namespace lockstep::steps
