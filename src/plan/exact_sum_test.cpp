#include "plan/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::plan {
namespace {

double sum_of(const std::vector<double>& summands) {
  ExactSum sum;
  for (const double one : summands) sum.add(one);
  return sum.value();
}

constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

TEST(ExactSumTest, OneNumberIsItself) {
  for (const double x : {0.0, 1.0, -1.0, 0.1, -1e300, kMax, -kMax, kTiny, -kTiny, 1e-310, 3e-308,
                         std::numeric_limits<double>::min()}) {
    EXPECT_EQ(sum_of({x}), x);
    EXPECT_EQ(sum_of({x, -x}), 0) << x;
  }
}

TEST(ExactSumTest, NothingIsLost) {
  EXPECT_EQ(sum_of({1e300, 1, -1e300}), 1);
  EXPECT_EQ(sum_of({kMax, kMax, -kMax, kTiny, -kMax}), kTiny);
  EXPECT_EQ(sum_of(std::vector<double>(10, 0.1)), 1.0);
  EXPECT_EQ(sum_of({kMax, kMax}), std::numeric_limits<double>::infinity());
}

TEST(ExactSumTest, RoundsToTheNearestAndTiesToEven) {
  const double ulp = std::ldexp(1.0, -52);
  EXPECT_EQ(sum_of({1, ulp / 2}), 1);
  EXPECT_EQ(sum_of({1 + ulp, ulp / 2}), 1 + 2 * ulp);
  EXPECT_EQ(sum_of({1, ulp / 2, kTiny}), 1 + ulp);
  EXPECT_EQ(sum_of({1, ulp / 2, -kTiny}), 1);
  EXPECT_EQ(sum_of({-1, -ulp / 2, -kTiny}), -1 - ulp);
  EXPECT_EQ(sum_of({2, -ulp / 2}), 2);
}

// Two numbers: what the processor gives, which is the nearest, too.
TEST(ExactSumTest, OfTwoIsTheProcessorsSum) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const auto draw = [&] {
      return std::ldexp(static_cast<double>(random()) - 0x1p63,
                        static_cast<int>(random() % 2100) - 1130);
    };
    const double a = draw(), b = i % 2 == 0 ? draw() : a * (1 + 1e-9) * (i % 3 - 1);
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    ASSERT_EQ(sum_of({a, b}), a + b) << a << " + " << b;
  }
}

// In any order, and spread over any number of workers that add their words as integers.
TEST(ExactSumTest, DoesNotDependOnOrderOrWorkers) {
  std::mt19937_64 random(2);
  std::vector<double> summands;
  for (int i = 0; i < 1000; ++i)
    summands.push_back(
        std::ldexp(static_cast<double>(random()) - 0x1p63, static_cast<int>(random() % 200) - 160));
  const double expected = sum_of(summands);
  for (const std::size_t workers : {2U, 3U, 64U}) {
    std::shuffle(summands.begin(), summands.end(), random);
    std::vector<ExactSum> parts(workers);
    for (std::size_t i = 0; i < summands.size(); ++i) parts[i % workers].add(summands[i]);
    ExactSum::Words all{};
    for (ExactSum& part : parts) {
      for (std::size_t word = 0; word < all.size(); ++word) all[word] += part.words()[word];
    }
    EXPECT_EQ(ExactSum(all).value(), expected);
  }
}

TEST(ExactSumTest, WhatIsNoNumberStays) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(sum_of({1, std::nan(""), 2})));
  EXPECT_TRUE(std::isnan(sum_of({infinity, -infinity})));
  EXPECT_EQ(sum_of({infinity, -kMax}), infinity);
  EXPECT_EQ(sum_of({-infinity, kMax}), -infinity);
}

}  // namespace
}  // namespace lockstep::plan
