#include "flat/parity.h"

#include <gtest/gtest.h>

#include <cstring>

#include "flat/tree_sum.h"
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

constexpr std::size_t kWithParity = 3 * kStripElements + 7;

// Byte by byte: the parity of elements is that of their bytes, place by place.
template <typename T>
Parity by_definition(const std::vector<T>& list, std::size_t first, std::size_t count) {
  std::uint8_t places[8] = {};
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(list.data() + first);
  for (std::size_t i = 0; i < count * sizeof(T); ++i) places[i % sizeof(T)] ^= bytes[i];
  Parity result = 0;
  std::memcpy(&result, places, sizeof(places));
  return result;
}

template <typename T>
void expect_parities() {
  const DType dtype = dtype_of<T>();
  SCOPED_TRACE(name(dtype));
  const auto left = rough_elements<T>(kWithParity, 1);
  const auto right = rough_elements<T>(kWithParity, 2);
  const Parity of_left = by_definition(left, 0, kWithParity);
  const Parity of_right = by_definition(right, 0, kWithParity);
  at_every_level([&] {
    for (const std::size_t offset : {0UL, 1UL, 2UL, 3UL, 5UL, 15UL}) {
      for (const std::size_t count : {0UL, 1UL, 7UL, 64UL, 100UL})
        EXPECT_EQ(parity(dtype, left.data() + offset, count), by_definition(left, offset, count));
    }
    for (const double factor : {1.0, 0.3}) {
      const Fold fold{dtype, ReduceOp::kSum, factor};
      std::vector<T> want(kWithParity);
      combine(fold, left.data(), right.data(), want.data(), kWithParity);
      const std::pair<ParityOf, Parity> cases[] = {{ParityOf::kLeft, of_left},
                                                   {ParityOf::kRight, of_right},
                                                   {ParityOf::kBoth, of_left ^ of_right}};
      for (const auto& [watch, expected] : cases) {
        auto onto = left;
        EXPECT_EQ(
            combine_with_parity(fold, onto.data(), right.data(), onto.data(), kWithParity, watch),
            expected);
        EXPECT_TRUE(same_bits(onto, want));
      }
      auto scaled = left;
      auto scaled_plainly = left;
      EXPECT_EQ(scale_with_parity(dtype, factor, scaled.data(), scaled.data(), kWithParity),
                of_left);
      scale(dtype, factor, scaled_plainly.data(), scaled_plainly.data(), kWithParity);
      EXPECT_TRUE(same_bits(scaled, scaled_plainly));
    }
  });
}

TEST(Parity, IsThatOfTheOperandsAndTheResultIsUnchanged) {
  expect_parities<float>();
  expect_parities<double>();
  expect_parities<Float16>();
  expect_parities<BFloat16>();
}

template <typename T>
void expect_moves() {
  const DType dtype = dtype_of<T>();
  SCOPED_TRACE(name(dtype));
  auto from = rough_elements<T>(kWithParity, 3);
  from[5] = static_cast<T>(-0.0F);
  at_every_level([&] {
    std::vector<T> copied(kWithParity);
    const Parity of_copy = copy_with_parity(dtype, from.data(), copied.data(), kWithParity);
    EXPECT_EQ(of_copy, by_definition(copied, 0, kWithParity));
    auto expected = from;
    expected[5] = static_cast<T>(0.0F);
    EXPECT_TRUE(same_bits(copied, expected));
    auto sum = rough_elements<T>(kWithParity, 4);
    auto plain = sum;
    const Parity old = by_definition(sum, 0, kWithParity);
    const Parities seen = add_with_parity(dtype, sum.data(), from.data(), kWithParity);
    combine(dtype, ReduceOp::kSum, plain.data(), from.data(), plain.data(), kWithParity);
    EXPECT_TRUE(same_bits(sum, plain));
    EXPECT_EQ(seen.before, old);
    EXPECT_EQ(seen.after, by_definition(sum, 0, kWithParity));
  });
}

TEST(Parity, GoesWithCopiesAndSums) {
  expect_moves<float>();
  expect_moves<double>();
  expect_moves<Float16>();
  expect_moves<BFloat16>();
}

// Wherever a stretch begins and ends among the registers of a loop.
template <typename T>
void expect_parities_on_every_cut() {
  const DType dtype = dtype_of<T>();
  SCOPED_TRACE(name(dtype));
  constexpr std::size_t kMost = 70;
  const auto from = rough_elements<T>(2 * kMost, 6);
  const auto old = rough_elements<T>(2 * kMost, 7);
  at_every_level([&] {
    for (std::size_t first = 0; first < 20; ++first) {
      for (std::size_t count = 0; count < kMost; ++count) {
        SCOPED_TRACE(::testing::Message() << first << '+' << count);
        const Parity of_from = by_definition(from, first, count);
        const Parity of_old = by_definition(old, first, count);
        auto sum = old;
        const Parities seen =
            add_with_parity(dtype, sum.data() + first, from.data() + first, count);
        ASSERT_EQ(seen.before, of_old);
        ASSERT_EQ(seen.after, by_definition(sum, first, count));
        auto expected = old;
        combine(dtype, ReduceOp::kSum, old.data() + first, from.data() + first,
                expected.data() + first, count);
        ASSERT_TRUE(same_bits(sum, expected));
        sum = old;
        ASSERT_EQ(
            combine_with_parity({dtype, ReduceOp::kSum, 1}, sum.data() + first, from.data() + first,
                                sum.data() + first, count, ParityOf::kBoth),
            of_old ^ of_from);
        ASSERT_TRUE(same_bits(sum, expected));
        sum = old;
        const Parity copied =
            copy_with_parity(dtype, from.data() + first, sum.data() + first, count);
        ASSERT_EQ(copied, by_definition(sum, first, count));
      }
    }
  });
}

TEST(Parity, IsTheSameOnEveryCut) {
  expect_parities_on_every_cut<float>();
  expect_parities_on_every_cut<double>();
  expect_parities_on_every_cut<BFloat16>();
}

TEST(Parity, ShowsEverySingleBit) {
  auto list = rough_elements<float>(200, 5);
  const Parity before = parity(DType::kFloat32, list.data(), list.size());
  for (std::size_t bit = 0; bit < list.size() * 32; bit += 37) {
    reinterpret_cast<std::uint8_t*>(list.data())[bit / 8] ^= 1U << (bit % 8);
    EXPECT_NE(parity(DType::kFloat32, list.data(), list.size()), before) << bit;
    reinterpret_cast<std::uint8_t*>(list.data())[bit / 8] ^= 1U << (bit % 8);
  }
}

template <typename T>
void expect_watched_tree(int operands) {
  const DType dtype = dtype_of<T>();
  std::vector<std::vector<T>> lists;
  std::vector<const void*> places;
  Parity all = 0;
  for (int i = 0; i < operands; ++i) {
    lists.push_back(rough_elements<T>(kWithParity, static_cast<std::uint32_t>(10 + i)));
    all ^= by_definition(lists.back(), 0, kWithParity);
  }
  for (const auto& list : lists) places.push_back(list.data());
  TreeSum sum(plan::plan_reduction(operands, operands), {dtype, ReduceOp::kSum, 0.25});
  std::vector<T> plain(kWithParity);
  std::vector<T> watched(kWithParity);
  sum.run(places, plain.data(), kWithParity);
  EXPECT_EQ(sum.run_with_parity(places, watched.data(), kWithParity), all) << operands;
  EXPECT_TRUE(same_bits(watched, plain)) << operands;
}

TEST(Parity, OfATreeIsThatOfAllItsOperands) {
  for (int operands = 1; operands <= 9; ++operands) {
    expect_watched_tree<float>(operands);
    expect_watched_tree<double>(operands);
    expect_watched_tree<BFloat16>(operands);
  }
}

}  // namespace
}  // namespace lockstep::flat
