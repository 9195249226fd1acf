#include "plan/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::plan {
namespace {

// Two shards of 2 samples each. |G_b|² is 10 and 6, 8 in the mean; |G_B|² is 5. So tr Σ is 3 / (1/2 − 1/4) and |G|² is
// (4 · 5 − 2 · 8) / 2.
TEST(NoiseScaleEstimate, IsTheFormulaOfThePaper) {
  const std::vector<double> shards = {10, 6};
  const NoiseEstimate estimate = estimate_noise({shards, 5, 2});
  EXPECT_EQ(estimate.noise, 12);
  EXPECT_EQ(estimate.signal, 2);
}

TEST(NoiseScaleEstimate, OfEqualGradientsThereIsNoNoise) {
  const std::vector<double> shards(8, 3);
  const NoiseEstimate estimate = estimate_noise({shards, 3, 16});
  EXPECT_EQ(estimate.noise, 0);
  EXPECT_EQ(estimate.signal, 3);
}

TEST(NoiseScaleEstimate, AStepCountsLessThanTheNext) {
  NoiseSums sums;
  EXPECT_FALSE(sums.average().measured);
  EXPECT_FALSE(sums.average().critical_batch());
  sums.add({.noise = 100, .signal = 1});
  EXPECT_DOUBLE_EQ(*sums.average().critical_batch(), 100);
  sums.add({.noise = 10, .signal = 3});
  const double weight = 1 + kNoiseDecay;
  EXPECT_DOUBLE_EQ(sums.average().noise, (kNoiseDecay * 100 + 10) / weight);
  EXPECT_DOUBLE_EQ(sums.average().signal, (kNoiseDecay * 1 + 3) / weight);
  const NoiseSums before = sums;
  sums.add({.noise = std::numeric_limits<double>::infinity(), .signal = 1});
  sums.add({.noise = 1, .signal = std::nan("")});
  EXPECT_EQ(sums.weight, before.weight);
  EXPECT_EQ(sums.noise, before.noise);
}

// Gradients of samples are G + noise, and the covariance of the noise is known here. Over 2,000 steps the standard
// deviation of both means is below 1 %.
TEST(NoiseScaleEstimate, FindsAKnownCovariance) {
  constexpr int kShards = 8;
  constexpr int kSamples = 4;
  const std::vector<double> mean = {1, -2, 0.5, 0};
  const std::vector<double> deviation = {3, 1, 0.5, 4};
  double signal = 0;
  double noise = 0;
  for (const double m : mean) signal += m * m;
  for (const double d : deviation) noise += d * d;
  std::mt19937_64 random(7);
  NoiseEstimate sum;
  constexpr int kSteps = 2000;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> total(mean.size(), 0);
    std::vector<double> squares;
    for (int shard = 0; shard < kShards; ++shard) {
      double square = 0;
      for (std::size_t i = 0; i < mean.size(); ++i) {
        double of_shard = 0;
        for (int sample = 0; sample < kSamples; ++sample)
          of_shard += std::normal_distribution(mean[i], deviation[i])(random) / kSamples;
        total[i] += of_shard / kShards;
        square += of_shard * of_shard;
      }
      squares.push_back(square);
    }
    double of_batch = 0;
    for (const double t : total) of_batch += t * t;
    const NoiseEstimate estimate = estimate_noise({squares, of_batch, kSamples});
    sum.noise += estimate.noise / kSteps;
    sum.signal += estimate.signal / kSteps;
  }
  EXPECT_NEAR(sum.signal / signal, 1, 0.05);
  EXPECT_NEAR(sum.noise / noise, 1, 0.05);
  EXPECT_NEAR(sum.noise / sum.signal / (noise / signal), 1, 0.08);
}

TEST(NoiseScaleEstimate, IsSaidWithTwoDigits) {
  const auto said = [](double noise, double signal) {
    return to_string({.noise = noise, .signal = signal, .measured = true}, 512);
  };
  EXPECT_EQ(said(1943.7, 1), "critical batch size about 1,900; this job uses 512");
  EXPECT_EQ(said(2.6, 1), "critical batch size about 3; this job uses 512");
  EXPECT_EQ(said(1234567, 1), "critical batch size about 1,200,000; this job uses 512");
  EXPECT_EQ(said(-1, 1), "critical batch size about 0; this job uses 512");
  EXPECT_EQ(said(5, -1), "critical batch size hidden by noise so far; this job uses 512");
  EXPECT_EQ(to_string({}, 512), "critical batch size not measured yet");
}

}  // namespace
}  // namespace lockstep::plan
