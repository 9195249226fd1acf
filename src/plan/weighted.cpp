#include "plan/weighted.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "plan/elementary.h"
#include "plan/sampler.h"
#include "plan/seed.h"

namespace lockstep::plan {
namespace {

// Of 53 random bits, in [0, 1).
double uniform(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// In (0, 1): the logarithm of it is finite and not 0.
double uniform_inside(std::uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

struct Sums {
  std::vector<double> running;
  std::int64_t positive = 0;
  std::int64_t last_positive = 0;
};

Sums sums_of(std::span<const double> weights) {
  Sums sums;
  sums.running.reserve(weights.size());
  double sum = 0;
  for (const double weight : weights) {
    const auto sample = static_cast<std::int64_t>(sums.running.size());
    if (!std::isfinite(weight) || weight < 0) {
      throw BadInput(fmt::format(
          "the weight of sample {} is {}: weights are finite and not negative", sample, weight));
    }
    if (weight > 0) {
      ++sums.positive;
      sums.last_positive = sample;
    }
    sum += weight;
    sums.running.push_back(sum);
  }
  if (sums.positive == 0) throw BadInput("no sample has a weight above 0: nothing can be drawn");
  if (!std::isfinite(sum))
    throw BadInput("the sum of the weights is not finite: make them smaller");
  return sums;
}

void check_draws(const DrawOptions& options, std::int64_t samples, std::int64_t positive) {
  constexpr std::int64_t kMostDraws = std::int64_t{1} << 53;
  if (options.draws < 1 || options.draws > kMostDraws) {
    throw BadInput(
        fmt::format("an epoch of {} draws: give a number from 1 to {}", options.draws, kMostDraws));
  }
  if (options.replacement == Replacement::kWith) return;
  if (samples > kMostShuffledSamples) {
    throw BadInput(
        fmt::format("{} samples cannot be drawn without replacement, only up to {}: draw them with "
                    "replacement",
                    samples, kMostShuffledSamples));
  }
  if (options.draws > positive) {
    throw BadInput(
        fmt::format("{} draws without replacement from {} samples with a weight above 0: draw "
                    "fewer, or with replacement",
                    options.draws, positive));
  }
}

}  // namespace

WeightedDraws::WeightedDraws(std::span<const double> weights, const DrawOptions& options)
    : options_(options) {
  Sums sums = sums_of(weights);
  const auto samples = static_cast<std::int64_t>(weights.size());
  if (options_.draws == 0) options_.draws = samples;
  check_draws(options_, samples, sums.positive);
  last_positive_ = sums.last_positive;
  if (options.replacement == Replacement::kWith) {
    numbers_ = std::move(sums.running);
  } else {
    numbers_.assign(weights.begin(), weights.end());
  }
}

// A sample without weight has the running sum of the one before it, so it is never the first above a number. The product
// may round up to the whole sum only if that is denormal; then it is the last sample.
std::int64_t WeightedDraws::drawn(std::uint64_t seed, std::int64_t epoch,
                                  std::int64_t position) const {
  LOCKSTEP_CHECK(options_.replacement == Replacement::kWith, "one draw alone is with replacement");
  const double number = uniform(draw_number(seed, epoch, position)) * numbers_.back();
  const auto above = std::upper_bound(numbers_.begin(), numbers_.end(), number);
  return std::min<std::int64_t>(above - numbers_.begin(), last_positive_);
}

std::vector<std::uint32_t> WeightedDraws::chosen(std::uint64_t seed, std::int64_t epoch) const {
  LOCKSTEP_CHECK(options_.replacement == Replacement::kWithout, "they are drawn with replacement");
  std::vector<std::pair<double, std::uint32_t>> keys;
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    if (numbers_[i] == 0) continue;
    const auto bits = draw_number(seed, epoch, static_cast<std::int64_t>(i));
    keys.emplace_back(-logarithm(uniform_inside(bits)) / numbers_[i],
                      static_cast<std::uint32_t>(i));
  }
  const auto end = keys.begin() + static_cast<std::ptrdiff_t>(options_.draws);
  std::nth_element(keys.begin(), end - 1, keys.end());
  std::sort(keys.begin(), end);
  std::vector<std::uint32_t> samples;
  samples.reserve(static_cast<std::size_t>(options_.draws));
  for (auto key = keys.begin(); key != end; ++key) samples.push_back(key->second);
  return samples;
}

}  // namespace lockstep::plan
