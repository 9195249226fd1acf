// What a run has measured, as numbers for its report.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/trainer.h>

#include <cstdint>
#include <vector>

namespace lockstep::train {

// The steps of a run so far.
struct RunTimes {
  std::vector<double> step_ms;
  std::vector<double> exposed_ms;  // of them, what waiting for others added
  std::int64_t samples = 0;

  void fill(TrainingResult& result) const;
};

// Of all workers together. Collective.
std::size_t memory_of_all(Comm& comm);

// The smallest of the values that at least this part of them does not exceed; 0 for none.
double percentile(std::vector<double> values, double part);

}  // namespace lockstep::train
