#include "flat/fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

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

constexpr std::size_t kFoldElements = 300;
constexpr std::size_t kCounts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 200};

// Rough elements with some in between that are no ordinary numbers. Where both operands are NaN the
// processor picks one; so NaN is on the left side only.
template <typename T>
std::vector<T> elements(std::uint32_t seed, bool left) {
  auto list = rough_elements<T>(kFoldElements, seed);
  if constexpr (!std::is_integral_v<T>) {
    const float infinity = std::numeric_limits<float>::infinity();
    const float special[] = {0.0F, -0.0F, infinity, -infinity, 0x1p-130F, -0x1p-149F, 3e38F};
    for (std::size_t i = 0; i < list.size(); i += 3) {
      const float value = special[(i / 3 + seed) % std::size(special)];
      const bool overflows = std::isinf(value) || value > 1e6F;
      if (overflows && !std::is_floating_point_v<T>) continue;  // the reference types cannot
      list[i] = static_cast<T>(value);
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (left) list[10] = list[100] = std::numeric_limits<T>::quiet_NaN();
    }
  }
  return list;
}

template <typename T>
T reference(const Fold& fold, T left, T right) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (fold.op == ReduceOp::kMin) return std::min(left, right);
    if (fold.op == ReduceOp::kMax) return std::max(left, right);
    return static_cast<T>(static_cast<U>(left) + static_cast<U>(right));
  } else {
    const auto a = static_cast<Sum<T>>(left);
    const auto b = static_cast<Sum<T>>(right);
    Sum<T> folded = a + b;
    if (fold.op == ReduceOp::kMin) folded = std::isnan(a) || !(b < a) ? a : b;
    if (fold.op == ReduceOp::kMax) folded = std::isnan(a) || !(b > a) ? a : b;
    if (fold.factor != 1) folded = folded * static_cast<Sum<T>>(fold.factor);
    return static_cast<T>(folded);
  }
}

// One call from `offset` on, onto a place of its own, the left and the right operand; what lies
// around the stretch must stay.
template <typename T>
void expect_reference(const Fold& fold, const std::vector<T>& left, const std::vector<T>& right,
                      const std::vector<T>& expected) {
  for (std::size_t offset = 0; offset < 64; ++offset) {
    for (const std::size_t count : kCounts) {
      const auto whole = [&](const std::vector<T>& around) {
        auto list = around;
        std::copy_n(expected.begin() + offset, count, list.begin() + offset);
        return list;
      };
      auto out = rough_elements<T>(kFoldElements, 99);
      auto onto_left = left;
      auto onto_right = right;
      const auto at = [&](const std::vector<T>& list) { return list.data() + offset; };
      const auto into = [&](std::vector<T>& list) { return list.data() + offset; };
      const auto want = whole(out);
      combine(fold, at(left), at(right), into(out), count);
      combine(fold, at(onto_left), at(right), into(onto_left), count);
      combine(fold, at(left), at(onto_right), into(onto_right), count);
      ASSERT_TRUE(same_bits(out, want)) << offset << '+' << count;
      ASSERT_TRUE(same_bits(onto_left, whole(left))) << offset << '+' << count;
      ASSERT_TRUE(same_bits(onto_right, whole(right))) << offset << '+' << count;
    }
  }
}

template <typename T>
void expect_scalar_bits_everywhere() {
  SCOPED_TRACE(name(dtype_of<T>()));
  const auto left = elements<T>(1, true);
  const auto right = elements<T>(2, false);
  std::vector<Fold> folds;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
    folds.push_back({dtype_of<T>(), op});
  }
  if constexpr (!std::is_integral_v<T>) folds.push_back({dtype_of<T>(), ReduceOp::kSum, 1.0 / 3});
  for (const Fold& fold : folds) {
    SCOPED_TRACE(name(fold.op));
    std::vector<T> expected(kFoldElements);
    for (std::size_t i = 0; i < kFoldElements; ++i)
      expected[i] = reference(fold, left[i], right[i]);
    at_every_level([&] { expect_reference(fold, left, right, expected); });
  }
}

TEST(Kernels, GiveTheScalarBitsAtEveryOffsetAndLengthAlsoOntoAnOperand) {
  expect_scalar_bits_everywhere<float>();
  expect_scalar_bits_everywhere<double>();
  expect_scalar_bits_everywhere<Float16>();
  expect_scalar_bits_everywhere<BFloat16>();
  expect_scalar_bits_everywhere<std::int32_t>();
  expect_scalar_bits_everywhere<std::int64_t>();
  expect_scalar_bits_everywhere<std::uint8_t>();
}

template <typename T>
void expect_fours(double factor) {
  std::vector<std::vector<T>> inputs;
  for (std::uint32_t i = 0; i < 4; ++i) inputs.push_back(rough_elements<T>(kFoldElements, i));
  for (std::size_t offset = 0; offset < 17; ++offset) {
    for (const std::size_t count : kCounts) {
      for (std::size_t onto = 0; onto < 4; ++onto) {
        auto operands = inputs;
        auto expected = inputs[onto];
        for (std::size_t i = offset; i < offset + count; ++i) {
          const T sum = (inputs[0][i] + inputs[1][i]) + (inputs[2][i] + inputs[3][i]);
          expected[i] = factor == 1 ? sum : sum * static_cast<T>(factor);
        }
        const auto at = [&](std::size_t i) { return operands[i].data() + offset; };
        add_four({dtype_of<T>(), ReduceOp::kSum, factor}, {at(0), at(1), at(2), at(3)}, at(onto),
                 count);
        ASSERT_TRUE(same_bits(operands[onto], expected)) << count << " at " << offset;
      }
    }
  }
}

TEST(Kernels, FourAreAddedAsTwoSumsAlsoOntoAnOperand) {
  at_every_level([] {
    for (const double factor : {1.0, 1.0 / 3}) {
      expect_fours<float>(factor);
      expect_fours<double>(factor);
    }
  });
}

TEST(Kernels, NotANumberSurvivesEveryOperation) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  at_every_level([&] {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
      const std::vector<float> ones(40, 1.0F);
      const std::vector<float> nans(40, nan);
      std::vector<float> out(40);
      combine(DType::kFloat32, op, ones.data(), nans.data(), out.data(), 40);
      for (const float value : out) EXPECT_TRUE(std::isnan(value)) << name(op);
      combine(DType::kFloat32, op, nans.data(), ones.data(), out.data(), 40);
      for (const float value : out) EXPECT_TRUE(std::isnan(value)) << name(op);
    }
  });
}

TEST(Kernels, WholeNumbersWrap) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const std::int32_t one = 1;
  std::int32_t sum = 0;
  combine(DType::kInt32, ReduceOp::kSum, &most, &one, &sum, 1);
  EXPECT_EQ(sum, std::numeric_limits<std::int32_t>::min());
}

template <typename T>
void expect_scaled() {
  SCOPED_TRACE(name(dtype_of<T>()));
  const auto from = elements<T>(3, true);
  for (const double factor : {1.0, 0.1, -2.0}) {
    auto expected = from;
    for (T& value : expected) {
      if (factor != 1) {
        value = static_cast<T>(static_cast<Sum<T>>(value) * static_cast<Sum<T>>(factor));
      }
    }
    at_every_level([&] {
      auto out = rough_elements<T>(kFoldElements, 4);
      scale(dtype_of<T>(), factor, from.data(), out.data(), kFoldElements);
      EXPECT_TRUE(same_bits(out, expected)) << factor;
      auto onto = from;
      scale(dtype_of<T>(), factor, onto.data(), onto.data(), kFoldElements);
      EXPECT_TRUE(same_bits(onto, expected)) << factor;
    });
  }
}

TEST(Kernels, ScalingRoundsOnce) {
  expect_scaled<float>();
  expect_scaled<double>();
  expect_scaled<Float16>();
  expect_scaled<BFloat16>();
}

// The definition, lane by lane.
template <typename T>
double squares(const T* from, std::size_t count) {
  std::vector<double> lanes(kSquareLanes);
  for (std::size_t lane = 0; lane < kSquareLanes; ++lane) {
    for (std::size_t i = lane; i < count; i += kSquareLanes) {
      const double value = static_cast<Sum<T>>(from[i]);
      const double square = value * value;
      lanes[lane] = lanes[lane] + square;
    }
  }
  while (lanes.size() > 1) {
    std::vector<double> sums;
    for (std::size_t i = 0; i < lanes.size(); i += 2) sums.push_back(lanes[i] + lanes[i + 1]);
    lanes = sums;
  }
  return lanes[0];
}

template <typename T>
void expect_squares() {
  SCOPED_TRACE(name(dtype_of<T>()));
  const auto from = rough_elements<T>(kStripElements + 64, 8);
  at_every_level([&] {
    for (std::size_t offset = 0; offset < 64; ++offset) {
      for (const std::size_t count : {0UL, 1UL, 15UL, 16UL, 17UL, 100UL, 1023UL, kStripElements}) {
        const double sum = sum_of_squares(dtype_of<T>(), from.data() + offset, count);
        ASSERT_EQ(std::bit_cast<std::uint64_t>(sum),
                  std::bit_cast<std::uint64_t>(squares(from.data() + offset, count)))
            << offset << '+' << count;
      }
    }
  });
}

TEST(Kernels, SquaresAreSummedInOneOrderForEveryVectorWidth) {
  expect_squares<float>();
  expect_squares<double>();
  expect_squares<Float16>();
  expect_squares<BFloat16>();
}

template <typename T>
double wide(T value) {
  return static_cast<double>(static_cast<Sum<T>>(value));
}

TEST(Kernels, TheLargestMagnitudeIsFoundAtEveryCut) {
  const auto expect = [](auto zero) {
    using T = decltype(zero);
    auto from = rough_elements<T>(kStripElements + 100, 9);
    at_every_level([&] {
      for (std::size_t offset = 0; offset < 40; ++offset) {
        for (const std::size_t count : {0UL, 1UL, 15UL, 16UL, 17UL, 100UL, kStripElements + 1}) {
          double most = 0;
          for (std::size_t i = 0; i < count; ++i)
            most = std::max(most, std::fabs(wide(from[offset + i])));
          ASSERT_EQ(largest(dtype_of<T>(), from.data() + offset, count), most) << offset;
        }
      }
      for (const std::size_t at : {0UL, 20UL, 99UL}) {
        auto bad = from;
        if constexpr (sizeof(T) == 2) {
          bad[at].bits = 0x7fff;
        } else {
          bad[at] = std::numeric_limits<T>::quiet_NaN();
        }
        EXPECT_TRUE(std::isnan(largest(dtype_of<T>(), bad.data(), 100)));
      }
    });
  };
  expect(float());
  expect(double());
  expect(Float16());
  expect(BFloat16());
}

TEST(Kernels, ElementsAreLimitedOnBothSides) {
  const auto expect = [](auto zero) {
    using T = decltype(zero);
    const auto from = rough_elements<T>(100, 9);
    at_every_level([&] {
      for (std::size_t offset = 0; offset < 20; ++offset) {
        std::vector<T> out(from.size());
        limit(dtype_of<T>(), 0.5, from.data() + offset, out.data(), 70);
        for (std::size_t i = 0; i < 70; ++i) {
          const double given = wide(from[offset + i]);
          ASSERT_EQ(wide(out[i]), std::clamp(given, -0.5, 0.5));
        }
        ASSERT_EQ(wide(out[70]), 0);
      }
    });
  };
  expect(float());
  expect(double());
  expect(Float16());
  expect(BFloat16());
}

}  // namespace
}  // namespace lockstep::flat
