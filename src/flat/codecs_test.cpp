#include <gtest/gtest.h>
#include <lockstep/codec.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/levels.h"

namespace lockstep {
namespace {

using testing::at_every_level;

std::vector<float> random_block(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> block(count);
  for (float& value : block) value = normal(random) * 0x1p-7F;
  return block;
}

std::vector<std::byte> encoded(const Codec& codec, const std::vector<float>& block) {
  std::vector<std::byte> bytes(codec.bytes(block.size()));
  codec.encode(block, bytes.data());
  return bytes;
}

std::vector<float> decoded(const Codec& codec, const std::vector<float>& block) {
  std::vector<float> result(block.size(), -1.0F);
  codec.decode(encoded(codec, block).data(), result);
  return result;
}

const std::vector<std::string> kAll = {"bf16",  "fp16",       "int8",   "int8:plain",
                                       "top-k", "top-k:0.25", "one-bit"};

void expect_bits(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << "element " << i << ": " << actual[i] << ", not " << expected[i];
  }
}

TEST(Codecs, HaveTheSameBytesAtEveryLevelAndAddress) {
  for (const std::string& words : kAll) {
    const auto codec = codec::parse(words);
    for (const std::size_t count : {1, 2, 7, 8, 9, 100, 1023, 1024}) {
      const auto block = random_block(count, count);
      const auto first = encoded(*codec, block);
      const auto decoded_first = decoded(*codec, block);
      at_every_level([&] {
        // One element and one byte further: nothing may depend on alignment.
        std::vector<float> moved(count + 1);
        std::copy(block.begin(), block.end(), moved.begin() + 1);
        std::vector<std::byte> bytes(codec->bytes(count) + 1);
        codec->encode(std::span(moved).subspan(1), bytes.data() + 1);
        codec->decode(bytes.data() + 1, std::span(moved).subspan(1));
        moved.erase(moved.begin());
        bytes.erase(bytes.begin());
        ASSERT_EQ(bytes, first) << words << " of " << count;
        expect_bits(moved, decoded_first);
      });
    }
  }
}

TEST(Codecs, AreWithinTheirBounds) {
  const auto block = random_block(1024, 1);
  const float largest =
      std::abs(*std::max_element(block.begin(), block.end(), [](float left, float right) {
        return std::abs(left) < std::abs(right);
      }));
  const auto expect_within = [&](const std::string& words, auto bound) {
    const auto result = decoded(*codec::parse(words), block);
    for (std::size_t i = 0; i < block.size(); ++i)
      ASSERT_LE(std::abs(result[i] - block[i]), bound(block[i])) << words << ", element " << i;
  };
  expect_within("bf16", [](float value) { return std::abs(value) * 0x1p-8F; });
  expect_within("fp16", [](float value) { return std::abs(value) * 0x1p-11F + 0x1p-25F; });
  expect_within("int8", [&](float) { return largest / 127 * 0.5001F; });
}

// By the definition in codec.h, with the standard library's own rounding.
TEST(Codecs, Int8RoundsToMultiplesOfAUnit) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto block = random_block(1000, seed);
    block[10] = 0.25F;  // the largest: 0.25 / 127 is the unit
    const float unit = 0.25F / 127;
    std::vector<float> expected(block.size());
    for (std::size_t i = 0; i < block.size(); ++i)
      expected[i] = std::nearbyint(block[i] * (127 / 0.25F)) * unit + 0.0F;
    expect_bits(decoded(*codec::int8(), block), expected);
  }
}

TEST(Codecs, TopKKeepsTheLargestAndOfEqualsTheFirst) {
  std::vector<float> block(100, 0.5F);
  block[97] = -4;
  block[3] = 3;
  const auto result = decoded(*codec::top_k(0.04), block);
  std::vector<float> expected(100);
  expected[97] = -4;
  expected[3] = 3;
  expected[0] = expected[1] = 0.5F;
  expect_bits(result, expected);
}

TEST(Codecs, TopKSendsAtLeastOneElement) {
  expect_bits(decoded(*codec::top_k(0.01), {1, -2, 1}), {0, -2, 0});
  EXPECT_EQ(codec::top_k(0.01)->bytes(3), 6U);
}

TEST(Codecs, OneBitSendsTheMeanOfEachSign) {
  expect_bits(decoded(*codec::one_bit(), {1, 2, -1, 3, -5}), {2, 2, -3, 2, -3});
  expect_bits(decoded(*codec::one_bit(), {-1, -3}), {-2, -2});
  EXPECT_EQ(codec::one_bit()->bytes(9), 10U);
}

// What waits stays bounded, in multiples of the largest magnitude: int8 keeps half a unit, the others the more the less they
// send.
TEST(Codecs, WithErrorFeedbackLoseNothingForGood) {
  const std::vector<std::pair<std::string, float>> most = {
      {"int8", 0.6F / 127}, {"top-k:0.25", 4}, {"top-k", 60}, {"one-bit", 120}};
  for (const auto& [words, bound] : most) {
    const auto codec = codec::parse(words);
    ASSERT_TRUE(codec->has_error_feedback());
    const auto gradient = random_block(1024, 7);
    const float largest = *std::max_element(gradient.begin(), gradient.end());
    std::vector<float> lost(1024);
    for (int step = 0; step < 400; ++step) {
      std::vector<float> sum(1024);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = gradient[i] + lost[i];
      const auto result = decoded(*codec, sum);
      for (std::size_t i = 0; i < sum.size(); ++i) lost[i] = sum[i] - result[i];
    }
    for (const float one : lost) ASSERT_LT(std::abs(one), bound * largest) << words;
  }
}

TEST(Codecs, ElementsThatAreNotFiniteStaySo) {
  for (const std::string& words : kAll) {
    const auto codec = codec::parse(words);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      auto block = random_block(600, 3);
      block[123] = bad;
      EXPECT_FALSE(std::isfinite(decoded(*codec, block)[123])) << words << ' ' << bad;
    }
  }
}

TEST(Codecs, ZerosAndTinyElementsStayFinite) {
  for (const std::string& words : kAll) {
    for (const float tiny :
         {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), 0x1p-126F, 0x1p-101F}) {
      for (const float value : decoded(*codec::parse(words), std::vector<float>(50, tiny)))
        ASSERT_LE(std::abs(value), std::abs(tiny)) << words;
    }
  }
}

// Bytes from outside: numbers beyond the block must not be written to.
TEST(Codecs, DecodeAnyBytes) {
  std::mt19937_64 random(5);
  for (const std::string& words : kAll) {
    const auto codec = codec::parse(words);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::byte> bytes(codec->bytes(77));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      std::vector<float> block(77);
      codec->decode(bytes.data(), block);
    }
  }
}

TEST(Codecs, AreNamedAsTheyAreParsed) {
  for (const std::string& words : kAll) {
    const std::string name = codec::parse(words)->name();
    EXPECT_EQ(codec::parse(name)->name(), name);
  }
  EXPECT_EQ(codec::parse("none"), nullptr);
  EXPECT_EQ(codec::parse("top-k")->name(), "top-k:0.01");
  for (const char* const bad :
       {"", "int4", "top-k:", "top-k:0", "top-k:0.6", "top-k:nan", "int8:", "INT8"})
    EXPECT_THROW(codec::parse(bad), BadInput) << bad;
}

TEST(Codecs, SendFewerBytes) {
  constexpr std::size_t kFloats = Codec::kBlock * sizeof(float);
  EXPECT_EQ(codec::bf16()->bytes(Codec::kBlock), kFloats / 2);
  EXPECT_EQ(codec::int8()->bytes(Codec::kBlock), kFloats / 4 + 4);
  EXPECT_EQ(codec::top_k()->bytes(Codec::kBlock), kFloats / 4096 * 60);
  EXPECT_EQ(codec::one_bit()->bytes(Codec::kBlock), kFloats / 32 + 8);
}

}  // namespace
}  // namespace lockstep
