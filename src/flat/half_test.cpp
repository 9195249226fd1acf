#include "flat/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/support/elements.h"
#include "tests/support/levels.h"

namespace lockstep::flat {
namespace {

using testing::at_every_level;
using testing::BFloat16;
using testing::Float16;

constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kQuiet = 0x400000U;

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// The definitions, NaN included; Float16 and BFloat16 know only numbers.
std::uint32_t widened(DType dtype, std::uint16_t bits) {
  if (dtype == DType::kBFloat16) return std::uint32_t{bits} << 16;
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t fraction = bits & 0x3ffU;
  if ((bits & 0x7c00U) == 0x7c00U) {
    return sign | kInfinity | (fraction << 13) | (fraction != 0 ? kQuiet : 0U);
  }
  Float16 half;
  half.bits = bits;
  return bits_of(static_cast<float>(half));
}

std::uint16_t narrowed(DType dtype, float value) {
  const std::uint32_t bits = bits_of(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(
        dtype == DType::kBFloat16 ? (bits >> 16) | 0x40U
                                  : ((bits >> 16) & 0x8000U) | 0x7e00U | ((bits >> 13) & 0x3ffU));
  }
  if (dtype == DType::kBFloat16) return BFloat16(value).bits;
  return Float16(std::clamp(value, -1e6F, 1e6F)).bits;
}

void expect_narrowed(DType dtype, const std::vector<float>& values) {
  std::vector<std::uint16_t> expected(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) expected[i] = narrowed(dtype, values[i]);
  at_every_level([&] {
    std::vector<std::uint16_t> halves(values.size());
    narrow(dtype, values.data(), halves.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(halves[i], expected[i]) << name(dtype) << ' ' << std::hex << bits_of(values[i]);
    }
  });
}

std::vector<std::uint16_t> every_half() {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  return halves;
}

TEST(Half, WideningEveryHalfIsExactAndNarrowingTakesItBack) {
  const auto halves = every_half();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    at_every_level([&] {
      std::vector<float> wide(halves.size());
      std::vector<std::uint16_t> back(halves.size());
      widen(dtype, halves.data(), wide.data(), halves.size());
      narrow(dtype, wide.data(), back.data(), halves.size());
      for (std::size_t i = 0; i < halves.size(); ++i) {
        ASSERT_EQ(bits_of(wide[i]), widened(dtype, halves[i])) << name(dtype) << ' ' << i;
        ASSERT_EQ(back[i], narrowed(dtype, wide[i])) << name(dtype) << ' ' << i;
        ASSERT_TRUE(back[i] == halves[i] || std::isnan(wide[i])) << name(dtype) << ' ' << i;
      }
    });
  }
}

TEST(Half, NarrowingRoundsToNearestTiesToEven) {
  std::mt19937 random(5);
  std::vector<float> values(200'000);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  // Most bits are far outside of float16; so a second part within.
  for (int i = 0; i < 100'000; ++i) {
    values.push_back(std::ldexp(static_cast<float>(random()) - 0x1p31F, -58 + i % 48));
  }
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) expect_narrowed(dtype, values);
}

TEST(Half, NarrowingIsRightOnBothSidesOfEveryTie) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x7c00U; ++bits) {
    const double low = std::bit_cast<float>(widened(DType::kFloat16, bits));
    const double high =
        bits == 0x7bffU ? 65536.0 : std::bit_cast<float>(widened(DType::kFloat16, bits + 1));
    const auto tie = static_cast<float>((low + high) / 2);
    for (const float value : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 1e9F)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  expect_narrowed(DType::kFloat16, values);
}

TEST(Half, WhatIsNoOrdinaryNumberSurvives) {
  std::vector<float> values{0.0F, -0.0F};
  for (const std::uint32_t sign : {0U, 0x80000000U}) {
    for (const std::uint32_t bits :
         {1U, 0x7fffffU, 0x800000U, 0x7f7fffffU, kInfinity, kInfinity | 1U, kInfinity | 0x2000U,
          kInfinity | kQuiet, kInfinity | kQuiet | 0x155555U, 0x7fffffffU}) {
      for (int i = 0; i < 9; ++i) values.push_back(std::bit_cast<float>(sign | bits));
    }
  }
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) expect_narrowed(dtype, values);
}

TEST(Half, BitsDoNotDependOnWhereAStretchBeginsAndEnds) {
  const auto halves = every_half();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    at_every_level([&] {
      for (std::size_t offset = 0; offset < 64; ++offset) {
        for (const std::size_t count : {0UL, 1UL, 7UL, 8UL, 9UL, 31UL, 64UL, 75UL}) {
          const std::size_t first = 32'630 + offset;  // NaN, −0 and what follows
          std::vector<float> wide(count + 1, 3.0F);
          widen(dtype, halves.data() + first, wide.data(), count);
          std::vector<std::uint16_t> back(offset + count + 1, 3);
          narrow(dtype, wide.data(), back.data() + offset, count);
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(bits_of(wide[i]), widened(dtype, halves[first + i]));
            ASSERT_EQ(back[offset + i], narrowed(dtype, wide[i]));
          }
          ASSERT_EQ(wide[count], 3.0F);
          ASSERT_EQ(back[offset + count], 3);
        }
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::flat
