#include "plan/traffic.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::plan {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr std::size_t kFloat = 4;
constexpr std::size_t kCount = 16 * 720'720;  // a whole line for each of up to 16 workers

// The most that any worker sends or receives, over ring's.
double times_ring(int shards, int workers) {
  std::size_t most = 0;
  for (const Traffic& one : direct_traffic(plan_reduction(shards, workers), kCount, kFloat))
    most = std::max({most, one.sent, one.received});
  return static_cast<double>(most) / ring_bytes(kCount * kFloat, workers);
}

TEST(TrafficTest, BoundsAreEvenInUnitsAndTheFirstOnesAreLonger) {
  EXPECT_THAT(even_bounds(10, 3, 1), ElementsAre(0, 4, 7, 10));
  EXPECT_THAT(even_bounds(100, 3, 16), ElementsAre(0, 48, 80, 100));
  EXPECT_THAT(even_bounds(5, 3, 16), ElementsAre(0, 5, 5, 5));
  EXPECT_THAT(even_bounds(0, 2, 16), ElementsAre(0, 0, 0));
}

TEST(TrafficTest, OneWorkerMovesNothing) {
  for (const std::size_t count : {std::size_t{3}, kCount}) {
    for (int shards = 1; shards <= 16; ++shards) {
      EXPECT_THAT(direct_traffic(plan_reduction(shards, 1), count, kFloat),
                  ElementsAre(Traffic{0, 0}));
    }
  }
  EXPECT_EQ(ring_bytes(1000, 1), 0);
}

TEST(TrafficTest, OneShardEachIsRingsBytes) {
  for (int workers = 2; workers <= 16; ++workers) {
    const auto ring = static_cast<std::size_t>(ring_bytes(kCount * kFloat, workers));
    EXPECT_THAT(direct_traffic(plan_reduction(workers, workers), kCount, kFloat),
                Each(Traffic{ring, ring}))
        << workers;
  }
}

TEST(TrafficTest, AWorkerOfSeveralPartialsSendsEachOfThem) {
  // 0 and 1, 2 | 3, 4 and 5: both send two partials of half the buffer, and half of the sum.
  EXPECT_THAT(direct_traffic(plan_reduction(6, 2), 3'200, kFloat),
              ElementsAre(Traffic{3 * 6'400, 3 * 6'400}, Traffic{3 * 6'400, 3 * 6'400}));
  // 0 and 1 | 2: two thirds of the shards are one partial.
  EXPECT_THAT(direct_traffic(plan_reduction(3, 2), 3'200, kFloat), Each(Traffic{12'800, 12'800}));
}

TEST(TrafficTest, AShortBufferIsSentWholeToEverybodyAndNothingComesBack) {
  EXPECT_THAT(direct_traffic(plan_reduction(6, 2), 1'024, kFloat),
              ElementsAre(Traffic{2 * 4'096, 2 * 4'096}, Traffic{2 * 4'096, 2 * 4'096}));
  EXPECT_THAT(direct_traffic(plan_reduction(4, 4), 10, kFloat), Each(Traffic{120, 120}));
}

TEST(TrafficTest, WhatIsSentIsReceived) {
  for (const std::size_t count : {std::size_t{10}, std::size_t{5'001}}) {
    for (int shards = 1; shards <= 16; ++shards) {
      for (int workers = 1; workers <= shards; ++workers) {
        std::size_t sent = 0;
        std::size_t received = 0;
        for (const Traffic& one : direct_traffic(plan_reduction(shards, workers), count, kFloat)) {
          sent += one.sent;
          received += one.received;
        }
        EXPECT_EQ(sent, received) << fmt::format("{} shards on {} workers", shards, workers);
      }
    }
  }
}

// Powers of two among them, which is what a job has unless it asks for others.
TEST(TrafficTest, UpToSixteenShardsMoveAtMostTwiceRingsBytesOnAnyNumberOfWorkers) {
  for (int shards = 2; shards <= 16; ++shards) {
    for (int workers = 2; workers <= shards; ++workers) {
      EXPECT_LE(times_ring(shards, workers), 2)
          << fmt::format("{} shards on {} workers", shards, workers);
    }
  }
  EXPECT_DOUBLE_EQ(times_ring(16, 3), 2);
  EXPECT_DOUBLE_EQ(times_ring(8, 3), 1.5);
  EXPECT_DOUBLE_EQ(times_ring(6, 4), 1);
}

TEST(TrafficTest, MoreShardsMayMoveMore) {
  EXPECT_DOUBLE_EQ(times_ring(18, 2), 2.5);  // 9 to 17 are four nodes
}

}  // namespace
}  // namespace lockstep::plan
