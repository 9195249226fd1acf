// What workers tell each other after a phase: losses, metrics, norms of shards' gradients, digests and stop requests. It
// is one small all-reduce, which travels while the next phase computes.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/noise_scale.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/noise_scale.h"

namespace lockstep::steps {

// The noise scales of a Step, by its optimizers: state of the job. A step that was measured counts when its numbers have
// come, which is before the next update.
using NoiseRecord = std::vector<plan::NoiseSums>;

// Threads:   one caller at a time.
// Blocking:  wait(), at most the Comm's timeout.
// Failure:   that of the all-reduce.
// Ownership: the all-reduce uses its memory until wait() has returned or the channel is gone. So the owner of the channel
//            shares it.
class PhaseResult {
 public:
  // A phase whose gradients were measured: squares of norms.
  struct Measured {
    std::int64_t samples = 0;      // of each shard
    std::vector<double> of_batch;  // by model: of the mean over all shards
  };
  // What every worker knows without being told.
  struct About {
    std::string name;  // of the Step
    std::int64_t step = 0;
    int phase = 0;
    std::int64_t steps = 1;  // of the round
    double lr = 0;           // of the first optimizer
    bool skipped = false;    // there was no update: gradients had overflowed
    double dropped = 0;      // with backups: the part of the gradients that did not count
    int shards = 0;
    double total_weight = 0;                       // of all shards
    std::size_t models = 0;                        // that have a divergence check
    std::vector<std::string> names;                // of metrics
    std::shared_ptr<NoiseRecord> noise = nullptr;  // null: nothing is measured in this job
    std::optional<Measured> measured = {};
    bool again = false;  // workers that have all ended may have told of it
  };
  // A metric of one shard.
  struct Report {
    double sum = 0;
    double weight = 0;
  };
  // What a worker wants of all others. `checkpoint` and `written` are the leader's to say.
  struct Asks {
    bool stop = false;        // the job is told to stop
    bool newcomers = false;   // workers wait to join
    bool checkpoint = false;  // it is time for one
    bool written = false;     // the write of one has ended
    void add(const Asks& more) {
      stop = stop || more.stop;
      newcomers = newcomers || more.newcomers;
      checkpoint = checkpoint || more.checkpoint;
      written = written || more.written;
    }
  };
  // What only this worker knows.
  struct Local {
    std::map<int, double> weighted_losses;                 // by hosted shard
    std::map<int, std::map<std::string, Report>> reports;  // the same, by name
    std::map<int, std::vector<double>> squares;  // of gradients: by hosted shard, by model
    std::vector<double> digests;                 // of the divergence check, by model
    Asks asks;
  };

  // If start() was not called before wait(), wait() calls `bring`, which calls start(): so it is on a GPU.
  PhaseResult(About about, std::function<void(PhaseResult&)> bring);

  const About& about() const { return about_; }

  // Collective on the channel; does not wait.
  void start(Comm& channel, const Local& local);
  // Call it before the accessors below.
  void wait();
  // The same for a program, which may ask at any time: as the job waits, so that a lost worker is no error.
  void await() { awaited_ ? awaited_(*this) : wait(); }
  void set_awaited(std::function<void(PhaseResult&)> awaited) { awaited_ = std::move(awaited); }
  bool in_flight() const { return started_ && !done_; }
  // In place of wait(), if a worker was lost while the numbers travelled: the losses are known from elsewhere, metrics are
  // not (NaN).
  void rescue(const std::vector<double>& losses);
  // After one of the two: nobody has asked for anything.
  void drop_asks();

  double loss() const;  // the weighted mean, added in the order of the tree over shards
  std::vector<double> digests(std::size_t model) const;  // by worker
  Asks asks() const;                                     // of some worker
  bool unknown_metric() const;  // some worker has reported one that is not among the names
  double metric(const std::string& name) const;  // BadInput for an unknown one; NaN for no weight
  // By optimizer, after this phase; empty: nothing is measured.
  const std::vector<NoiseScale>& noise() const { return noise_; }

 private:
  std::size_t first_of_metric(std::size_t number) const;
  std::size_t first_of_squares(std::size_t model) const;
  void record_noise();

  About about_;
  std::function<void(PhaseResult&)> bring_;
  std::function<void(PhaseResult&)> awaited_;
  // Losses by shard, digests by model and worker, counts (kFlags); then of each metric sums and weights by shard; of each
  // model, if it was measured, squares by shard.
  std::vector<double> numbers_;
  std::vector<NoiseScale> noise_;
  std::size_t workers_ = 0;
  Work work_;
  bool started_ = false;
  bool done_ = false;
  bool rescued_ = false;
};

}  // namespace lockstep::steps
