#include <algorithm>
#include <utility>

#include "comm/algorithms/algorithms.h"
#include "plan/traffic.h"

namespace lockstep::comm {

Cut Cut::even(std::size_t count, int workers, std::size_t granule) {
  return at(plan::even_bounds(count, workers, granule));
}

Cut Cut::at(std::vector<std::size_t> bounds) {
  Cut cut;
  cut.bounds_ = std::move(bounds);
  return cut;
}

Cut Cut::of(std::span<const std::size_t> counts) {
  Cut cut;
  cut.bounds_.reserve(counts.size() + 1);
  cut.bounds_.push_back(0);
  for (const std::size_t count : counts) cut.bounds_.push_back(cut.bounds_.back() + count);
  return cut;
}

std::size_t Cut::longest() const {
  std::size_t most = 0;
  for (std::size_t i = 1; i < bounds_.size(); ++i)
    most = std::max(most, bounds_[i] - bounds_[i - 1]);
  return most;
}

std::vector<std::size_t> Cut::counts() const {
  std::vector<std::size_t> counts;
  for (std::size_t i = 1; i < bounds_.size(); ++i) counts.push_back(bounds_[i] - bounds_[i - 1]);
  return counts;
}

}  // namespace lockstep::comm
