// From samples to the numbers of a report.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::bench {

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

}  // namespace lockstep::bench
