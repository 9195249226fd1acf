// `lockstep bench faults`: what it costs to lose a worker, and to be able to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/step.h"

namespace lockstep::bench {

int bench_faults(const std::vector<std::string>& arguments);

// What came of workers that were killed, each at a moment of its own; in ms from the kill.
struct KillTimes {
  std::vector<double> noticed;    // until the launcher had taken note of its end
  std::vector<double> committed;  // until the survivors had committed a step without it
  std::vector<double> rejoined;   // until a step was committed with its replacement
  std::vector<double> step;       // of the survivors, all steps between those two
};

struct FaultsReport {
  int workers = 0;
  std::int64_t batch = 0;  // of each worker
  double minutes = 0;      // of kills, one a minute
  KillTimes kills;
  std::vector<double> calm;       // samples a second, undisturbed, by round
  std::vector<double> disturbed;  // the same at one kill a minute
  std::vector<StepResult> costs;  // steps without faults: each optimizer without restarts, and with
};

std::string as_json(const FaultsReport& report);
std::string as_table(const FaultsReport& report);
std::string as_plot(const FaultsReport& report);

}  // namespace lockstep::bench
