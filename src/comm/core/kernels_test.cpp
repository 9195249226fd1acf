#include "comm/core/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plan/tree.h"
#include "tests/support/elements.h"

namespace lockstep::comm {
namespace {

using testing::BFloat16;
using testing::buffer_of;
using testing::dtype_of;
using testing::Float16;
using testing::rough_elements;
using testing::same_bits;

template <typename T>
void expect_scalar_bits_at_every_offset() {
  const auto left = rough_elements<T>(200, 1);
  const auto right = rough_elements<T>(200, 2);
  for (std::size_t offset = 0; offset < 20; ++offset) {
    for (const std::size_t count : {0UL, 1UL, 7UL, 16UL, 33UL, 150UL}) {
      std::vector<T> out(count);
      combine(dtype_of<T>(), ReduceOp::kSum, left.data() + offset, right.data() + offset,
              out.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        const std::vector<std::vector<T>> pair{{left[offset + i]}, {right[offset + i]}};
        EXPECT_TRUE(same_bits(std::vector<T>{out[i]}, testing::tree_sum(pair)))
            << offset << ' ' << i;
      }
    }
  }
}

TEST(Kernels, GiveTheScalarBitsAtEveryOffsetAndLength) {
  expect_scalar_bits_at_every_offset<float>();
  expect_scalar_bits_at_every_offset<double>();
  expect_scalar_bits_at_every_offset<Float16>();
  expect_scalar_bits_at_every_offset<BFloat16>();
  expect_scalar_bits_at_every_offset<std::int32_t>();
  expect_scalar_bits_at_every_offset<std::int64_t>();
  expect_scalar_bits_at_every_offset<std::uint8_t>();
}

TEST(Kernels, WideningEveryHalfIsExactAndNarrowingTakesItBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      float wide = 0;
      widen(dtype, &half, &wide, 1);
      const bool special =
          dtype == DType::kFloat16 ? (bits & 0x7c00U) == 0x7c00U : (bits & 0x7f80U) == 0x7f80U;
      if (!special) {
        Float16 float16;
        float16.bits = half;
        BFloat16 bfloat16;
        bfloat16.bits = half;
        const float expected =
            dtype == DType::kFloat16 ? static_cast<float>(float16) : static_cast<float>(bfloat16);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide), std::bit_cast<std::uint32_t>(expected))
            << bits;
      }
      if (std::isnan(wide)) continue;
      std::uint16_t back = 0;
      narrow(dtype, &wide, &back, 1);
      ASSERT_EQ(back, half) << name(dtype);
    }
  }
}

TEST(Kernels, NarrowingRoundsToNearestTiesToEven) {
  std::mt19937 random(5);
  for (int i = 0; i < 300'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    std::uint16_t bits = 0;
    narrow(DType::kFloat16, &value, &bits, 1);
    ASSERT_EQ(bits, Float16(std::clamp(value, -1e6F, 1e6F)).bits) << value;
    narrow(DType::kBFloat16, &value, &bits, 1);
    ASSERT_EQ(bits, BFloat16(value).bits) << value;
  }
}

TEST(Kernels, NotANumberAndInfinitySurvive) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::uint16_t bits = 0;
    float back = 0;
    narrow(dtype, &nan, &bits, 1);
    widen(dtype, &bits, &back, 1);
    EXPECT_TRUE(std::isnan(back));
    narrow(dtype, &infinity, &bits, 1);
    widen(dtype, &bits, &back, 1);
    EXPECT_EQ(back, infinity);
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
    const float one = 1;
    float out = 0;
    combine(DType::kFloat32, op, &one, &nan, &out, 1);
    EXPECT_TRUE(std::isnan(out)) << name(op);
    combine(DType::kFloat32, op, &nan, &one, &out, 1);
    EXPECT_TRUE(std::isnan(out)) << name(op);
  }
}

TEST(Kernels, WholeNumbersWrap) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const std::int32_t one = 1;
  std::int32_t sum = 0;
  combine(DType::kInt32, ReduceOp::kSum, &most, &one, &sum, 1);
  EXPECT_EQ(sum, std::numeric_limits<std::int32_t>::min());
}

TEST(TreeSumTest, AddsInTheOrderOfThePlanAlsoOntoAnOperand) {
  for (int shards = 1; shards <= 17; ++shards) {
    std::vector<std::vector<float>> inputs;
    for (int i = 0; i < shards; ++i) inputs.push_back(rough_elements<float>(2500, i));
    const auto expected = testing::tree_sum(inputs);
    const auto plan = plan::plan_reduction(shards, shards);
    for (int onto = 0; onto < shards; ++onto) {
      auto operands = inputs;
      std::vector<const void*> pointers;
      for (const auto& operand : operands) pointers.push_back(operand.data());
      TreeSum(plan, DType::kFloat32, ReduceOp::kSum).run(pointers, operands[onto].data(), 2500);
      EXPECT_TRUE(same_bits(operands[onto], expected)) << shards << " onto " << onto;
    }
  }
}

TEST(TreeSumTest, HalfTypesAreRoundedOnceAtTheRoot) {
  // 2048 + 1 + 1: rounded at every step it stays 2048 in float16; rounded once it is 2050.
  const Float16 big(2048.0F);
  const Float16 one(1.0F);
  const std::vector<const void*> operands{&big, &one, &one};
  Float16 sum;
  TreeSum(plan::plan_reduction(3, 3), DType::kFloat16, ReduceOp::kSum).run(operands, &sum, 1);
  EXPECT_EQ(static_cast<float>(sum), 2050.0F);
}

}  // namespace
}  // namespace lockstep::comm
