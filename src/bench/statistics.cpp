#include "bench/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace lockstep::bench {

double quantile(const std::vector<double>& sorted, double fraction) {
  LOCKSTEP_CHECK(!sorted.empty(), "a quantile of no samples");
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

Summary summarise(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples.size(), quantile(samples, 0.5), quantile(samples, 0.99), quantile(samples, 0.25),
          quantile(samples, 0.75)};
}

double algorithm_bandwidth(std::size_t bytes, double microseconds) {
  return static_cast<double>(bytes) / microseconds / 1e3;
}

double bus_bandwidth(double algorithm_bandwidth, int workers) {
  return algorithm_bandwidth * 2 * (workers - 1) / workers;
}

}  // namespace lockstep::bench
