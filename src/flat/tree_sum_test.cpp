#include "flat/tree_sum.h"

#include <gtest/gtest.h>

#include "tests/support/elements.h"
#include "tests/support/levels.h"

namespace lockstep::flat {
namespace {

using testing::at_every_level;
using testing::BFloat16;
using testing::dtype_of;
using testing::Float16;
using testing::rough_elements;
using testing::same_bits;
using testing::Sum;

constexpr std::size_t kSummed = 2500;  // two pieces and a bit

template <typename T>
std::vector<std::vector<T>> inputs_of(int shards) {
  std::vector<std::vector<T>> inputs;
  for (int i = 0; i < shards; ++i) inputs.push_back(rough_elements<T>(kSummed, i));
  return inputs;
}

template <typename T>
std::vector<const void*> pointers_to(const std::vector<std::vector<T>>& operands) {
  std::vector<const void*> pointers;
  for (const auto& operand : operands) pointers.push_back(operand.data());
  return pointers;
}

TEST(TreeSumTest, AddsInTheOrderOfThePlanAlsoOntoAnOperand) {
  for (int shards = 1; shards <= 17; ++shards) {
    const auto inputs = inputs_of<float>(shards);
    const auto expected = testing::tree_sum(inputs);
    const auto plan = plan::plan_reduction(shards, shards);
    for (int onto = 0; onto < shards; ++onto) {
      auto operands = inputs;
      TreeSum(plan, Fold{DType::kFloat32})
          .run(pointers_to(operands), operands[onto].data(), kSummed);
      EXPECT_TRUE(same_bits(operands[onto], expected)) << shards << " onto " << onto;
    }
  }
}

// Onto all operands and a place of its own, in both orders of places.
template <typename T>
void expect_everywhere(int shards, double factor) {
  SCOPED_TRACE(std::to_string(shards) + " of " + name(dtype_of<T>()));
  const auto inputs = inputs_of<T>(shards);
  std::vector<T> expected = testing::tree_sum(inputs);
  if constexpr (!std::is_integral_v<T>) {
    for (std::size_t i = 0; i < kSummed && factor != 1; ++i) {
      const Sum<T> sum = testing::tree_of<Sum<T>>(
          0, shards, [&](int input) { return static_cast<Sum<T>>(inputs[input][i]); },
          [](Sum<T> a, Sum<T> b) { return a + b; });
      expected[i] = static_cast<T>(sum * static_cast<Sum<T>>(factor));
    }
  }
  TreeSum sum(plan::plan_reduction(shards, shards), {dtype_of<T>(), ReduceOp::kSum, factor});
  for (const bool own_first : {false, true}) {
    auto operands = inputs;
    std::vector<T> own(kSummed);
    std::vector<void*> outs;
    for (auto& operand : operands) outs.push_back(operand.data());
    outs.insert(own_first ? outs.begin() : outs.end(), own.data());
    sum.run(pointers_to(operands), outs, kSummed);
    EXPECT_TRUE(same_bits(own, expected)) << factor;
    for (const auto& operand : operands) EXPECT_TRUE(same_bits(operand, expected)) << factor;
  }
}

TEST(TreeSumTest, StoresTheSumInEveryPlaceTimesTheFactor) {
  at_every_level([] {
    for (const int shards : {1, 2, 3, 4, 6, 8}) {
      for (const double factor : {1.0, 1.0 / 3}) {
        expect_everywhere<float>(shards, factor);
        expect_everywhere<double>(shards, factor);
        expect_everywhere<Float16>(shards, factor);
        expect_everywhere<BFloat16>(shards, factor);
      }
      expect_everywhere<std::int32_t>(shards, 1);
      expect_everywhere<std::uint8_t>(shards, 1);
    }
  });
}

TEST(TreeSumTest, NoFactorLeavesNegativeZeroAlone) {
  const std::vector<float> zeros(5, -0.0F);
  const std::vector<const void*> operands{zeros.data(), zeros.data()};
  std::vector<float> sum(5);
  TreeSum(plan::plan_reduction(2, 2), Fold{DType::kFloat32}).run(operands, sum.data(), 5);
  EXPECT_TRUE(same_bits(sum, zeros));
}

TEST(TreeSumTest, HalfTypesAreRoundedOnceAtTheRoot) {
  // 2048 + 1 + 1: rounded at every step it stays 2048 in float16; rounded once it is 2050.
  const Float16 big(2048.0F);
  const Float16 one(1.0F);
  const std::vector<const void*> operands{&big, &one, &one};
  Float16 sum;
  TreeSum(plan::plan_reduction(3, 3), Fold{DType::kFloat16}).run(operands, &sum, 1);
  EXPECT_EQ(static_cast<float>(sum), 2050.0F);
}

TEST(TreeSumDeathTest, AFactorOfWholeNumbersIsABug) {
  const Fold fold{DType::kInt32, ReduceOp::kSum, 0.5};
  EXPECT_DEATH(TreeSum(plan::plan_reduction(2, 2), fold), "whole numbers have no factor");
}

}  // namespace
}  // namespace lockstep::flat
