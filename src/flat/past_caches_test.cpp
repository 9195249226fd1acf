#include "flat/past_caches.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/support/elements.h"

namespace lockstep::flat {
namespace {

using testing::BFloat16;
using testing::dtype_of;
using testing::rough_elements;

TEST(PastCaches, CopiesAnyBytesAndNoOthers) {
  std::vector<std::uint8_t> from(1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i * 7 + 1);
  for (const std::size_t begin : {0UL, 1UL, 63UL, 64UL, 65UL}) {
    for (const std::size_t bytes : {0UL, 1UL, 15UL, 64UL, 127UL, 128UL, 300UL, 641UL}) {
      std::vector<std::uint8_t> out(1000, 0xEE);
      std::vector<std::uint8_t> want = out;
      std::memcpy(want.data() + begin, from.data() + 3, bytes);
      copy_past_caches(from.data() + 3, out.data() + begin, bytes);
      EXPECT_EQ(out, want) << begin << " " << bytes;
    }
  }
}

template <typename T>
void expect_as_copy_with_parity() {
  constexpr std::size_t kMost = 20'001;  // more than one row of any type
  const auto from = rough_elements<T>(kMost, 3);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1025}, kMost}) {
    std::vector<T> want(kMost);
    std::vector<T> out(kMost);
    const Parity expected = copy_with_parity(dtype_of<T>(), from.data(), want.data(), count);
    EXPECT_EQ(copy_past_caches_with_parity(dtype_of<T>(), from.data(), out.data(), count),
              expected);
    EXPECT_EQ(std::memcmp(out.data(), want.data(), kMost * sizeof(T)), 0);
  }
}

TEST(PastCaches, HasTheBitsAndTheParityOfAnOrdinaryCopy) {
  expect_as_copy_with_parity<float>();
  expect_as_copy_with_parity<double>();
  expect_as_copy_with_parity<BFloat16>();
}

}  // namespace
}  // namespace lockstep::flat
