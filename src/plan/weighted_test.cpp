#include "plan/weighted.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "plan/position.h"
#include "plan/seed.h"

namespace lockstep::plan {
namespace {

const std::vector<double> kWeights = {0, 1, 5, 0, 0.25, 3, 0};
constexpr double kSum = 9.25;

std::shared_ptr<const WeightedDraws> draws_of(const std::vector<double>& weights,
                                              DrawOptions options = {}) {
  return std::make_shared<WeightedDraws>(weights, options);
}

// n draws with probability p: n·p ± 6σ.
void expect_share(std::int64_t found, std::int64_t n, double p, const std::string& what) {
  const double expected = static_cast<double>(n) * p;
  EXPECT_NEAR(static_cast<double>(found), expected, 6 * std::sqrt(expected * (1 - p))) << what;
}

TEST(WeightedDrawsTest, WithReplacementEachDrawHasItsSharesOfTheSum) {
  constexpr std::int64_t kDraws = 200'000;
  const auto draws = draws_of(kWeights, {.draws = kDraws});
  std::vector<std::int64_t> found(kWeights.size());
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> pairs;
  std::int64_t before = -1;
  for (std::int64_t p = 0; p < kDraws; ++p) {
    const std::int64_t sample = draws->drawn(5, 2, p);
    ++found[static_cast<std::size_t>(sample)];
    if (before >= 0) ++pairs[{before, sample}];
    before = sample;
  }
  for (std::size_t i = 0; i < found.size(); ++i)
    expect_share(found[i], kDraws, kWeights[i] / kSum, "sample " + std::to_string(i));
  // One draw says nothing of the next.
  for (const auto& [pair, count] : pairs) {
    const double first = kWeights[static_cast<std::size_t>(pair.first)] / kSum;
    const double second = kWeights[static_cast<std::size_t>(pair.second)] / kSum;
    expect_share(count, kDraws - 1, first * second,
                 "pair " + std::to_string(pair.first) + " " + std::to_string(pair.second));
  }
}

// As torch.multinomial: the first sample with probability w / Σ w, the second among those left.
TEST(WeightedDrawsTest, WithoutReplacementEachDrawHasItsShareOfWhatIsLeft) {
  constexpr std::int64_t kEpochs = 60'000;
  const auto draws = draws_of(kWeights, {.draws = 3, .replacement = Replacement::kWithout});
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> found;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto chosen = draws->chosen(7, epoch);
    ASSERT_EQ(std::set<std::uint32_t>(chosen.begin(), chosen.end()).size(), 3U);
    ++found[{chosen[0], chosen[1]}];
  }
  for (const std::uint32_t first : {1U, 2U, 4U, 5U}) {
    for (const std::uint32_t second : {1U, 2U, 4U, 5U}) {
      if (first == second) continue;
      const double p = kWeights[first] / kSum * kWeights[second] / (kSum - kWeights[first]);
      expect_share(found[{first, second}], kEpochs, p,
                   std::to_string(first) + " then " + std::to_string(second));
    }
  }
  EXPECT_EQ(found.size(), 12U) << "a sample without weight never comes";
}

TEST(WeightedDrawsTest, AreTheSameOnEveryMachine) {
  const auto with = draws_of(kWeights, {.draws = 12});
  std::vector<std::int64_t> samples;
  for (std::int64_t p = 0; p < 12; ++p) samples.push_back(with->drawn(3, 1, p));
  EXPECT_EQ(samples, (std::vector<std::int64_t>{2, 1, 2, 1, 2, 5, 5, 2, 5, 2, 2, 5}));
  const auto without = draws_of({1, 2, 3, 4, 5, 6}, {.replacement = Replacement::kWithout});
  EXPECT_EQ(without->chosen(3, 1), (std::vector<std::uint32_t>{5, 4, 2, 3, 0, 1}));
}

TEST(WeightedDrawsTest, FollowSeedAndEpochAndNeedNoDrawBefore) {
  const std::vector<double> weights(1000, 0.1);
  const DataOptions options{
      .samples = 1000, .global_batch = 48, .shards = 4, .seed = 3, .weights = draws_of(weights)};
  Batches batches(options);
  EXPECT_EQ(batches.steps_per_epoch(), 21);
  for (const std::int64_t step : {0, 7, 20, 21, 1000}) {
    for (int shard = 0; shard < 4; ++shard) {
      EXPECT_EQ(Batches(options).samples(step, shard), batches.samples(step, shard));
    }
  }
  EXPECT_NE(batches.samples(0, 0), batches.samples(21, 0)) << "another epoch";
  EXPECT_EQ(batches.count(20, 3), 10) << "1,000 draws are 20 batches of 48 and one of 40";
  EXPECT_EQ(batches.entries(20, 3).front(), 963);
}

TEST(WeightedDrawsTest, AnyNumberOfShardsDrawsTheSameBatches) {
  for (const Replacement replacement : {Replacement::kWith, Replacement::kWithout}) {
    const auto weights =
        draws_of({1, 2, 3, 4, 5, 6, 7, 8}, {.draws = 8, .replacement = replacement});
    std::multiset<std::int64_t> expected;
    for (const int shards : {1, 2, 4}) {
      Batches batches({.samples = 8, .global_batch = 4, .shards = shards, .weights = weights});
      std::multiset<std::int64_t> all;
      for (int shard = 0; shard < shards; ++shard) {
        for (const auto sample : batches.samples(3, shard)) all.insert(sample);
      }
      if (shards == 1) expected = all;
      EXPECT_EQ(all, expected) << shards;
    }
  }
}

TEST(WeightedDrawsTest, PaddingDrawsOnOrBeginsAgain) {
  SamplerOptions options{.samples = 7, .seed = 2, .weights = draws_of(kWeights, {.draws = 3})};
  EXPECT_EQ(epoch_entries(options, 2), 4);
  EXPECT_EQ(EpochOrder(options, 0).sample_at(3), options.weights->drawn(2, 0, 3));
  options.weights = draws_of(kWeights, {.draws = 3, .replacement = Replacement::kWithout});
  EXPECT_EQ(EpochOrder(options, 0).sample_at(3), EpochOrder(options, 0).sample_at(0));
}

TEST(WeightedDrawsTest, TheSmallestAndTheLargestSumsGiveSamplesWithWeight) {
  for (const double weight :
       {std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::min(), 0x1p1022}) {
    const auto draws = draws_of({0, weight, 0});
    for (std::int64_t p = 0; p < 100; ++p) EXPECT_EQ(draws->drawn(1, 0, p), 1);
  }
}

TEST(WeightedDrawsTest, WhatGivesNoDistributionIsRefused) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_THROW(draws_of({}), BadInput);
  EXPECT_THROW(draws_of({0, 0}), BadInput);
  EXPECT_THROW(draws_of({1, -1}), BadInput);
  EXPECT_THROW(draws_of({1, infinite}), BadInput);
  EXPECT_THROW(draws_of({1, std::nan("")}), BadInput);
  EXPECT_THROW(draws_of({0x1p1023, 0x1p1023}), BadInput);
  EXPECT_THROW(draws_of({1, 1}, {.draws = -1}), BadInput);
  EXPECT_THROW(draws_of({1, 0, 1}, {.replacement = Replacement::kWithout}), BadInput);
  EXPECT_THROW(Batches({.samples = 3, .global_batch = 1, .weights = draws_of({1, 1})}), BadInput);
}

}  // namespace
}  // namespace lockstep::plan
