// Contenders take turns: in each round every one runs once, alone on the machine.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/contenders.h"

namespace lockstep::bench {

// From samples to the numbers of a report.

// The value below which `fraction` of the samples lie, between two of them in proportion. The samples are
// sorted and at least one.
double quantile(const std::vector<double>& sorted, double fraction);

struct Summary {
  std::size_t samples = 0;
  double p50 = 0;
  double p99 = 0;
  double q1 = 0;  // the spread: half of the samples lie between the quartiles
  double q3 = 0;
};

Summary summarise(std::vector<double> samples);

// As nccl-tests define them, in GB/s (10⁹): bytes over time; and what every worker's link must carry
// at the least, which is 2 (N−1)/N of it.
double algorithm_bandwidth(std::size_t bytes, double microseconds);
double bus_bandwidth(double algorithm_bandwidth, int workers);

// What the workers of a run printed that is meant for us: lines that are JSON objects, without the
// launcher's mark.
std::vector<std::string> result_lines(const std::string& output);

// One line on standard error: rewritten on a terminal, else one for each round.
class RoundProgress {
 public:
  RoundProgress();
  ~RoundProgress();
  RoundProgress(const RoundProgress&) = delete;
  RoundProgress& operator=(const RoundProgress&) = delete;

  void show(int round, int rounds, const std::string& name);
  void say(const std::string& line);

 private:
  void clear();

  bool terminal_;
  bool shown_ = false;
  int last_round_ = -1;
};

// Called for each run that succeeded. An exception makes it a run that failed.
using TakeRun = std::function<void(std::size_t contender, const std::vector<std::string>& lines)>;

struct RoundsEnd {
  bool good = true;          // none of ours failed
  std::vector<bool> failed;  // for each contender, in whichever round
};

// Runs them all. A contender that fails, or runs for longer than `longest`, is reported with what it printed, and left
// out of later rounds. Throws Interrupted.
RoundsEnd run_rounds(const std::vector<Contender>& contenders, int rounds, const TakeRun& take,
                     std::chrono::seconds longest);

// The same where contender i adds to results[i], by add(lines). Only those that never failed are left in `results`:
// what a contender did before it failed is no result. False when one of ours failed.
template <typename Result>
bool run_rounds(const std::vector<Contender>& contenders, int rounds, std::vector<Result>& results,
                std::chrono::seconds longest) {
  const RoundsEnd end = run_rounds(
      contenders, rounds, TakeRun([&](std::size_t i, const auto& lines) { results[i].add(lines); }),
      longest);
  std::vector<Result> kept;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!end.failed[i]) kept.push_back(std::move(results[i]));
  }
  results = std::move(kept);
  return end.good;
}

}  // namespace lockstep::bench
