#include "app/train/step_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::app {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::vector<plan::Bucket> buckets_of(const std::vector<std::size_t>& bytes) {
  std::vector<plan::Bucket> buckets;
  for (const std::size_t one : bytes) {
    buckets.emplace_back();
    buckets.back().bytes = one;
  }
  return buckets;
}

// 32 MB, in two buckets.
const std::vector<plan::Bucket>& two_buckets() {
  static const auto buckets = buckets_of({8'000'000, 24'000'000});
  return buckets;
}

TEST(TrainTrafficTest, OneWorkerHasNothingToSay) {
  const StepTraffic traffic = traffic_of(Algorithm::kAutomatic, 8, 1, two_buckets());
  EXPECT_EQ(traffic.bytes, 0U);
  EXPECT_EQ(traffic.times_ring, std::nullopt);
  EXPECT_THAT(spoken(traffic, {8, 1}), IsEmpty());
}

TEST(TrainTrafficTest, OnePartialEachIsRingsBytesOfAllBuckets) {
  const StepTraffic traffic = traffic_of(Algorithm::kAutomatic, 8, 4, two_buckets());
  EXPECT_EQ(traffic.bytes, 48'000'000U);
  EXPECT_DOUBLE_EQ(*traffic.times_ring, 1);
  EXPECT_EQ(spoken(traffic, {8, 4}),
            "48.0 MB of gradients a step for the busiest worker, 1.00 times ring's");
}

TEST(TrainTrafficTest, MoreThanTwiceRingsBytesNamesTheShardsAndTheWorkers) {
  const StepTraffic traffic = traffic_of(Algorithm::kDirect, 18, 2, two_buckets());
  EXPECT_EQ(traffic.bytes, 80'000'000U);
  EXPECT_DOUBLE_EQ(*traffic.times_ring, 2.5);
  EXPECT_THAT(spoken(traffic, {18, 2}),
              HasSubstr("S = 18 on 2 workers moves 2.5 times ring's bytes"));
  const StepTraffic twice = traffic_of(Algorithm::kDirect, 9, 2, two_buckets());
  EXPECT_DOUBLE_EQ(*twice.times_ring, 2);
  EXPECT_THAT(spoken(twice, {9, 2}), HasSubstr("2.00 times ring's"));
}

TEST(TrainTrafficTest, OtherAlgorithmsMoveRingsBytesOrAreNotCounted) {
  for (const Algorithm asked : {Algorithm::kHalvingDoubling, Algorithm::kRing}) {
    const StepTraffic traffic = traffic_of(asked, 2, 2, two_buckets());
    EXPECT_EQ(traffic.bytes, 32'000'000U);
    EXPECT_EQ(traffic.times_ring, 1);
  }
  for (const Algorithm asked : {Algorithm::kTree, Algorithm::kNative}) {
    const StepTraffic traffic = traffic_of(asked, 2, 2, two_buckets());
    EXPECT_EQ(traffic.bytes, std::nullopt);
    EXPECT_THAT(spoken(traffic, {2, 2}), IsEmpty());
  }
}

TEST(TrainTrafficTest, InPlaceIsSaid) {
  EXPECT_THAT(spoken({.in_place = true, .bytes = 0, .times_ring = {}}, {8, 2}),
              HasSubstr("in place"));
}

TEST(TrainTrafficTest, AsynchronousStepsAreSaidByShard) {
  EXPECT_EQ(spoken({.bytes = {}, .times_ring = {}, .of_task = 3'200'000}, {8, 2, true}),
            "3.2 MB for each shard of a step: weights come, a gradient goes");
}

}  // namespace
}  // namespace lockstep::app
