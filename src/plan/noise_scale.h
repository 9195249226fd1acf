// How the noise scale is estimated (lockstep/noise_scale.h).
//
//   G_b, G_B   the mean gradient of the b samples of a shard, and of the B samples of a step
//
// The expected |G_b|² is |G|² + tr Σ / b, and that of |G_B|² is |G|² + tr Σ / B. Two equations with
// two unknowns, so
//
//   |G|²  = (B |G_B|² − b |G_b|²) / (B − b)
//   tr Σ  = (|G_b|² − |G_B|²) / (1/b − 1/B)
//
// have no bias (McCandlish et al. 2018, appendix A.1). Their quotient has one. So the two are
// averaged over steps, each for itself, before they are divided.
#pragma once

#include <lockstep/noise_scale.h>

#include <cstdint>
#include <span>

namespace lockstep::plan {

// A step that was measured: squares of norms, and how many samples the gradients are means of.
struct MeasuredStep {
  std::span<const double> of_shards;  // |G_b|² of each shard; two at least
  double of_batch = 0;                // |G_B|²
  std::int64_t samples = 0;           // of each shard
};

struct NoiseEstimate {
  double noise = 0;   // tr Σ
  double signal = 0;  // |G|²
};
NoiseEstimate estimate_noise(const MeasuredStep& step);

// Sums over steps, in which a step counts kNoiseDecay times as much as the next one. They are part of
// a job's state, and checkpoints keep them as three numbers.
inline constexpr double kNoiseDecay = 0.95;
struct NoiseSums {
  double noise = 0;
  double signal = 0;
  double weight = 0;

  void add(const NoiseEstimate& estimate);  // one that is not finite does not count
  NoiseScale average() const;
};

}  // namespace lockstep::plan
