#include "flat/low_rank.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace lockstep::flat {
namespace {

struct Case {
  std::size_t rows;
  int rank;
};

std::vector<float> random_matrix(Case size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> matrix(size.rows * static_cast<std::size_t>(size.rank));
  for (float& value : matrix) value = normal(random);
  return matrix;
}

double dot_of_columns(const std::vector<float>& matrix, Case size, int a, int b) {
  double sum = 0;
  for (std::size_t row = 0; row < size.rows; ++row) {
    const float* const values = &matrix[row * static_cast<std::size_t>(size.rank)];
    sum += static_cast<double>(values[a]) * static_cast<double>(values[b]);
  }
  return sum;
}

// Rounding each element to float32 leaves at most about its epsilon.
void expect_orthonormal(const std::vector<float>& matrix, Case size) {
  for (int a = 0; a < size.rank; ++a) {
    for (int b = 0; b <= a; ++b)
      EXPECT_NEAR(dot_of_columns(matrix, size, a, b), a == b ? 1 : 0, 3e-7) << a << ' ' << b;
  }
}

TEST(Orthonormalise, MakesColumnsOrthonormal) {
  for (const Case size : {Case{1, 1}, Case{5, 2}, Case{64, 8}, Case{1000, 32}}) {
    auto matrix = random_matrix(size, size.rows);
    orthonormalise(matrix.data(), size.rows, size.rank);
    expect_orthonormal(matrix, size);
  }
}

TEST(Orthonormalise, KeepsTheFirstColumnsDirectionAndTheSpan) {
  const Case size{50, 3};
  const auto before = random_matrix(size, 7);
  auto after = before;
  orthonormalise(after.data(), size.rows, size.rank);
  for (int column = 0; column < size.rank; ++column) {
    // What is left of the old column behind its projections on the new ones.
    std::vector<double> rest(size.rows);
    for (std::size_t row = 0; row < size.rows; ++row)
      rest[row] = static_cast<double>(before[row * 3 + static_cast<std::size_t>(column)]);
    for (int other = 0; other < size.rank; ++other) {
      double along = 0;
      for (std::size_t row = 0; row < size.rows; ++row)
        along += rest[row] * static_cast<double>(after[row * 3 + static_cast<std::size_t>(other)]);
      for (std::size_t row = 0; row < size.rows; ++row)
        rest[row] -= along * static_cast<double>(after[row * 3 + static_cast<std::size_t>(other)]);
    }
    double norm = 0;
    for (const double value : rest) norm += value * value;
    EXPECT_LT(std::sqrt(norm), 1e-5);
  }
}

TEST(Orthonormalise, NearlyParallelColumnsBecomeOrthonormal) {
  const Case size{200, 4};
  auto matrix = random_matrix(size, 11);
  for (std::size_t row = 0; row < size.rows; ++row) {
    for (std::size_t column = 1; column < 4; ++column)
      matrix[row * 4 + column] = matrix[row * 4] * (1 + 1e-4F * matrix[row * 4 + column]);
  }
  orthonormalise(matrix.data(), size.rows, size.rank);
  expect_orthonormal(matrix, size);
}

// Else a factor that was zero once would stay so for ever.
TEST(Orthonormalise, ColumnsWithoutADirectionOfTheirOwnGetOne) {
  const Case size{30, 3};
  std::vector<float> zeros(size.rows * 3);
  orthonormalise(zeros.data(), size.rows, size.rank);
  expect_orthonormal(zeros, size);
  auto twins = random_matrix(size, 3);
  for (std::size_t row = 0; row < size.rows; ++row) twins[row * 3 + 1] = twins[row * 3];
  orthonormalise(twins.data(), size.rows, size.rank);
  expect_orthonormal(twins, size);
}

TEST(Orthonormalise, WhatIsNotFiniteStaysSo) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Case size{8, 2};
    auto matrix = random_matrix(size, 5);
    matrix[3] = bad;
    orthonormalise(matrix.data(), size.rows, size.rank);
    bool found = false;
    for (const float value : matrix) found |= !std::isfinite(value);
    EXPECT_TRUE(found);
  }
}

TEST(WorthFactors, IsPyTorchsRule) {
  EXPECT_TRUE(worth_factors(230, 230, 57));
  EXPECT_FALSE(worth_factors(230, 230, 58));
  EXPECT_FALSE(worth_factors(1, 1'000'000, 1));
  EXPECT_FALSE(worth_factors(4, 4, 1));  // not less than half
  EXPECT_TRUE(worth_factors(5, 5, 1));
}

TEST(FirstFactor, HasNumbersOnBothSidesOfZeroThatDependOnTheirPlaceAlone) {
  std::vector<float> small(10 * 2);
  first_factor(small.data(), 10, 2);
  std::vector<float> large(20 * 4);
  first_factor(large.data(), 20, 4);
  bool above = false;
  bool below = false;
  for (std::size_t row = 0; row < 10; ++row) {
    for (std::size_t column = 0; column < 2; ++column) {
      const float value = small[row * 2 + column];
      EXPECT_EQ(value, large[row * 4 + column]);
      EXPECT_LE(std::abs(value), 1.0F);
      above |= value > 0.5F;
      below |= value < -0.5F;
    }
  }
  EXPECT_TRUE(above && below);
}

TEST(PowerSgd, IsNamedByEverySettingThatDecidesBits) {
  EXPECT_EQ(codec::parse("power-sgd")->name(), "power-sgd:1:1000");
  EXPECT_EQ(codec::parse("power-sgd:4")->name(), "power-sgd:4:1000");
  EXPECT_EQ(codec::parse("power-sgd:4:0")->name(), "power-sgd:4:0");
  for (const char* words : {"power-sgd:0", "power-sgd:-1", "power-sgd:1:-1", "power-sgd:",
                            "power-sgd:1:", "power-sgd:1:2:3", "power-sgd:4294967297"})
    EXPECT_THROW(codec::parse(words), BadInput) << words;
}

}  // namespace
}  // namespace lockstep::flat
