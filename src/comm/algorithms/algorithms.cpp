#include "comm/algorithms/algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "plan/traffic.h"
#include "plan/tree.h"

namespace lockstep::comm {

Choice choose(Algorithm asked, int shards, Possible possible) {
  const int workers = possible.workers;
  if (asked == Algorithm::kAutomatic || workers == 1) return {Algorithm::kDirect, "direct"};
  if (asked == Algorithm::kTwoLevels) {
    if (possible.two_levels) return {asked, name(asked)};
    return {
        Algorithm::kDirect,
        "direct (asked for two-levels: these workers are not on several hosts that share memory)"};
  }
  if (asked == Algorithm::kNative)
    return {Algorithm::kDirect,
            "direct (asked for native: the engine has none for memory of the CPU)"};
  if (asked == Algorithm::kHalvingDoubling) {
    const auto verdict = plan::halving_doubling_verdict(shards, workers);
    if (!verdict.possible) {
      return {Algorithm::kDirect,
              fmt::format("direct (asked for halving-doubling: {})", verdict.reason)};
    }
  } else if (asked != Algorithm::kDirect && shards != workers) {
    return {Algorithm::kDirect,
            fmt::format("direct (asked for {}: it takes one partial per worker)", name(asked))};
  }
  return {asked, name(asked)};
}

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

PairSlices::PairSlices(std::vector<std::size_t> counts, int workers)
    : counts_(std::move(counts)), workers_(static_cast<std::size_t>(workers)) {
  LOCKSTEP_CHECK(counts_.size() == workers_ * workers_, "each pair of workers has a slice");
}

Cut PairSlices::data_of(int worker) const {
  const std::size_t first = static_cast<std::size_t>(worker) * workers_;
  return Cut::of(std::span(counts_).subspan(first, workers_));
}

Cut PairSlices::result_of(int worker) const {
  std::vector<std::size_t> column;
  for (std::size_t i = static_cast<std::size_t>(worker); i < counts_.size(); i += workers_)
    column.push_back(counts_[i]);
  return Cut::of(column);
}

std::size_t PairSlices::total() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
}

// Dissemination barrier.
//
//   rounds   ⌈log2 N⌉: in round k greet the rank 2^k after this one, and wait for the greeting of
//            the rank 2^k before
//
// After round k a worker knows that 2^(k+1) workers have arrived. Greetings are enough; there is no
// payload.
void dissemination_barrier(Exchange& exchange) {
  if (exchange.has_board()) {
    exchange.begin({});
    return exchange.await_all();
  }
  const int size = exchange.size();
  for (int distance = 1; distance < size; distance *= 2) {
    const int before = (exchange.rank() + size - distance) % size;
    exchange.expect(before);
    exchange.greet((exchange.rank() + distance) % size);
    exchange.check(before);
  }
}

}  // namespace lockstep::comm
