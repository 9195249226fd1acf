#include "plan/noise_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/tree.h"

namespace lockstep {
namespace {

// 12345 → "12,345"
std::string with_commas(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

// 1943.7 → "1,900"
std::string two_digits(double number) {
  constexpr double kMost = 1e15;
  std::int64_t unit = 1;
  while (number / static_cast<double>(unit) >= 100 && static_cast<double>(unit) < kMost) unit *= 10;
  return with_commas(std::llround(std::min(number, kMost) / static_cast<double>(unit)) * unit);
}

}  // namespace

std::optional<double> NoiseScale::critical_batch() const {
  if (!measured || !(signal > 0)) return std::nullopt;
  return std::max(noise, 0.0) / signal;
}

std::string to_string(const NoiseScale& scale, std::int64_t global_batch) {
  if (!scale.measured) return "critical batch size not measured yet";
  const auto critical = scale.critical_batch();
  return fmt::format("critical batch size {}; this job uses {}",
                     critical ? "about " + two_digits(*critical) : "hidden by noise so far",
                     with_commas(global_batch));
}

namespace plan {

// The mean over shards, in the order of the tree.
NoiseEstimate estimate_noise(const MeasuredStep& step) {
  const auto shards = static_cast<double>(step.of_shards.size());
  const auto small = static_cast<double>(step.samples);
  const double large = small * shards;
  const double of_shard = tree_sum(step.of_shards) / shards;
  return {.noise = (of_shard - step.of_batch) / (1 / small - 1 / large),
          .signal = (large * step.of_batch - small * of_shard) / (large - small)};
}

void NoiseSums::add(const NoiseEstimate& estimate) {
  if (!std::isfinite(estimate.noise) || !std::isfinite(estimate.signal)) return;
  noise = kNoiseDecay * noise + estimate.noise;
  signal = kNoiseDecay * signal + estimate.signal;
  weight = kNoiseDecay * weight + 1;
}

NoiseScale NoiseSums::average() const {
  if (weight == 0) return {};
  return {.noise = noise / weight, .signal = signal / weight, .measured = true};
}

}  // namespace plan
}  // namespace lockstep
