// The gradient noise scale: how large a batch still pays.
//
//   G     the gradient of the loss over all data
//   Σ     the covariance of the gradients of single samples
//   tr Σ  its trace: how far, squared, the gradient of one sample is from G
//
// The critical batch size is tr Σ / |G|² (McCandlish et al. 2018, "An Empirical Model of Large-Batch
// Training", B_simple). Well below it, twice the batch makes nearly twice the progress in a step.
// Well above it, a larger batch only costs more samples. It usually grows while a model learns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

// An estimate from the norms of the gradients of single shards, and of their mean. It is averaged
// over the steps that were measured: each step before the last one counts 0.95 times as much as the
// one after it. The same number on every worker, and on any number of workers.
//
// Threads:   any, as a value.
// Blocking:  never.
// Failure:   none.
// Ownership: a value.
struct NoiseScale {
  double noise = 0;   // tr Σ
  double signal = 0;  // |G|²; below 0 if the noise hides it
  bool measured = false;

  // None: no step has been measured yet, or the noise hides the signal.
  std::optional<double> critical_batch() const;
};

// "critical batch size about 1,900; this job uses 512": two digits, as more are noise.
std::string to_string(const NoiseScale& scale, std::int64_t global_batch);

}  // namespace lockstep
