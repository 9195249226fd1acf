// In each round every system is started once. So what changes on the machine over time affects all
// of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/contenders.h"

namespace lockstep::bench {

// The value below which `fraction` of the samples are, interpolated between two samples. The
// samples are sorted, and there is at least one.
double quantile(const std::vector<double>& sorted, double fraction);

struct Summary {
  std::size_t samples = 0;
  double p50 = 0;
  double p99 = 0;
  double q1 = 0;  // the spread: half of the samples are between the quartiles
  double q3 = 0;
};

Summary summarise(std::vector<double> samples);

// Bandwidths as nccl-tests define them, in GB/s (10⁹). algbw is bytes over time. busbw is what the
// link of every worker must carry at least: 2 (N−1)/N of algbw.
double algorithm_bandwidth(std::size_t bytes, double microseconds);
double bus_bandwidth(double algorithm_bandwidth, int workers);

// The results that the workers of a run printed: lines that are JSON objects, without the
// launcher's prefix.
std::vector<std::string> result_lines(const std::string& output);

// Called for each run that succeeded. If it throws, the run counts as failed.
using TakeRun = std::function<void(std::size_t contender, const std::vector<std::string>& lines)>;

struct RoundsEnd {
  bool good = true;          // no system of ours failed
  std::vector<bool> failed;  // by system, in any round
};

struct Rounds {
  int count = 1;
  std::chrono::seconds longest{0};  // that a system may take in a round
  // Above 1: systems that can do so run side by side, and take this number of turns in a round
  // (bench/turns.h). All others run alone.
  int turns = 1;
};

// Runs all rounds. A system that fails, or that takes too long, is reported with what it printed, and
// is left out of later rounds. Throws Interrupted.
RoundsEnd run_rounds(const std::vector<Contender>& contenders, const Rounds& rounds,
                     const TakeRun& take);

// The same, and system i adds to results[i] with add(lines). Only systems that never failed stay in
// `results`: what a system did before it failed is not a result. False if one of ours failed.
template <typename Result>
bool run_rounds(const std::vector<Contender>& contenders, const Rounds& rounds,
                std::vector<Result>& results) {
  const RoundsEnd end =
      run_rounds(contenders, rounds,
                 TakeRun([&](std::size_t i, const auto& lines) { results[i].add(lines); }));
  std::vector<Result> kept;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!end.failed[i]) kept.push_back(std::move(results[i]));
  }
  results = std::move(kept);
  return end.good;
}

}  // namespace lockstep::bench
