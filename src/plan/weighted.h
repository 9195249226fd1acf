// Samples drawn by weight: the distributions of PyTorch's WeightedRandomSampler.
//
//   with replacement      draw p of an epoch takes a uniform number of (seed, epoch, p), and finds it
//                         among the running sums of the weights. Any draw is computed without those
//                         before it
//   without replacement   sample i gets the key −ln(u) / w, with a uniform number of (seed, epoch, i).
//                         The smallest keys come first: a race of exponential clocks, which is the
//                         distribution of drawing one after the other. A sample of weight 0 never comes
//
// Everything is computed with + − · / of doubles, so every machine draws the same. PyTorch draws
// from a generator with a state, so its sequence is another one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::plan {

enum class Replacement : std::uint8_t { kWith, kWithout };

struct DrawOptions {
  std::int64_t draws = 0;  // of an epoch; 0: as many as there are samples
  Replacement replacement = Replacement::kWith;
};

// Threads:   immutable after construction; any thread may read.
// Blocking:  never; chosen() takes the time of a sort.
// Failure:   the constructor throws BadInput for weights that give no distribution, or too many
//            draws.
// Ownership: a value; 8 bytes per sample.
class WeightedDraws {
 public:
  WeightedDraws(std::span<const double> weights, const DrawOptions& options);

  std::int64_t samples() const { return static_cast<std::int64_t>(numbers_.size()); }
  std::int64_t draws() const { return options_.draws; }
  Replacement replacement() const { return options_.replacement; }

  // With replacement: the sample of any draw, also of one beyond draws().
  std::int64_t drawn(std::uint64_t seed, std::int64_t epoch, std::int64_t position) const;

  // Without replacement: the samples of an epoch, in order; draws() of them.
  std::vector<std::uint32_t> chosen(std::uint64_t seed, std::int64_t epoch) const;

 private:
  DrawOptions options_;
  std::vector<double> numbers_;     // running sums; without replacement: the weights
  std::int64_t last_positive_ = 0;  // the last sample that can be drawn
};

}  // namespace lockstep::plan
