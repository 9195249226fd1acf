#include "plan/seed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace lockstep::plan {
namespace {

// Of k seeds drawn evenly from 2^32, about k²/2^33 pairs are equal; Poisson, so ±6σ.
TEST(ShardSeed, CollidesNoMoreThanRandomNumbersDo) {
  for (const std::uint64_t job : {0ULL, 1ULL, 1ULL << 63}) {
    std::vector<std::uint32_t> seeds;
    for (std::int64_t step = 0; step < 8000; ++step) {
      for (int shard = 0; shard < 64; ++shard) seeds.push_back(shard_seed(job, step, shard));
    }
    std::sort(seeds.begin(), seeds.end());
    double pairs = 0;
    for (std::size_t i = 1; i < seeds.size(); ++i) pairs += seeds[i] == seeds[i - 1] ? 1 : 0;
    const double k = static_cast<double>(seeds.size());
    const double expected = k * k / std::pow(2.0, 33);
    EXPECT_NEAR(pairs, expected, 6 * std::sqrt(expected));
  }
}

// Each flipped input bit flips each output bit half of the time: over 4,096 trials 0.5 ± 6σ =
// 0.047.
template <typename Flip>
void expect_avalanche(int input_bits, Flip seed_with_flip) {
  constexpr int kTrials = 4096;
  for (int bit = 0; bit < input_bits; ++bit) {
    std::vector<int> flips(32, 0);
    for (int trial = 0; trial < kTrials; ++trial) {
      const std::uint32_t changed = seed_with_flip(trial, -1) ^ seed_with_flip(trial, bit);
      for (int out = 0; out < 32; ++out) flips[out] += static_cast<int>((changed >> out) & 1);
    }
    for (const int count : flips) {
      ASSERT_NEAR(count / static_cast<double>(kTrials), 0.5, 0.047) << "input bit " << bit;
    }
  }
}

std::uint64_t flipped(std::uint64_t value, int bit) {
  return bit < 0 ? value : value ^ (1ULL << bit);
}

TEST(ShardSeed, EveryBitOfTheJobReachesEveryBit) {
  expect_avalanche(64, [](int trial, int bit) {
    return shard_seed(flipped(static_cast<std::uint64_t>(trial), bit), 7, 3);
  });
}

TEST(ShardSeed, EveryBitOfTheStepReachesEveryBit) {
  expect_avalanche(40, [](int trial, int bit) {
    return shard_seed(
        42, static_cast<std::int64_t>(flipped(static_cast<std::uint64_t>(trial), bit)), 3);
  });
}

TEST(ShardSeed, EveryBitOfTheShardReachesEveryBit) {
  expect_avalanche(20, [](int trial, int bit) {
    return shard_seed(42, trial, static_cast<int>(flipped(5, bit)));
  });
}

TEST(ShardSeed, EveryBitOfThePhaseReachesEveryBit) {
  expect_avalanche(10, [](int trial, int bit) {
    return shard_seed(42, trial, 3, static_cast<int>(flipped(1025, bit)));
  });
}

// Jobs have run with these.
TEST(ShardSeed, ThatOfTheFirstPhaseIsThatOfAStepWithOne) {
  EXPECT_EQ(shard_seed(7, 12, 3, 0), shard_seed(7, 12, 3));
  EXPECT_NE(shard_seed(7, 12, 3, 1), shard_seed(7, 12, 3));
}

TEST(ShardSeed, StepAndShardDoNotChangePlaces) {
  int equal = 0;
  for (int a = 0; a < 200; ++a) {
    for (int b = 0; b < a; ++b) equal += shard_seed(1, a, b) == shard_seed(1, b, a) ? 1 : 0;
  }
  EXPECT_EQ(equal, 0);
  EXPECT_NE(shard_seed(0, 0, 1), shard_seed(0, 1, 0));
  EXPECT_NE(shard_seed(1, 0, 0), shard_seed(0, 1, 0));
}

// Checkpoints rely on it: a change of these numbers changes the result of every job.
TEST(ShardSeed, StaysAsItIs) {
  EXPECT_EQ(shard_seed(0, 0, 0), 595752380U);
  EXPECT_EQ(shard_seed(42, 1000, 7), 2738970378U);
}

TEST(SampleSeed, EveryBitOfEveryInputReachesEveryBit) {
  const auto seed = [](std::uint64_t job, std::uint64_t epoch, std::uint64_t index) {
    return static_cast<std::uint32_t>(
        sample_seed(job, static_cast<std::int64_t>(epoch), static_cast<std::int64_t>(index)));
  };
  expect_avalanche(64, [&](int trial, int bit) {
    return seed(flipped(static_cast<std::uint64_t>(trial), bit), 7, 3);
  });
  expect_avalanche(20, [&](int trial, int bit) {
    return seed(42, flipped(static_cast<std::uint64_t>(trial), bit), 3);
  });
  expect_avalanche(40, [&](int trial, int bit) {
    return seed(42, 3, flipped(static_cast<std::uint64_t>(trial), bit));
  });
}

TEST(SampleSeed, IsNoneOfAShardAndStaysAsItIs) {
  EXPECT_NE(static_cast<std::uint32_t>(sample_seed(0, 0, 0) >> 32), shard_seed(0, 0, 0));
  EXPECT_NE(sample_seed(1, 2, 3), sample_seed(1, 3, 2));
  EXPECT_EQ(sample_seed(0, 0, 0), 1932074509705007800U);
  EXPECT_EQ(sample_seed(42, 3, 1000), 6886693663782764989U);
}

}  // namespace
}  // namespace lockstep::plan
