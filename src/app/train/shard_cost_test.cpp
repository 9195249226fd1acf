#include "app/train/shard_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::app {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(TrainShardCostTest, AJobHasAtLeastAShardForEachWorker) {
  const ShardSizes eight = shard_sizes(64, 8, 2);
  EXPECT_EQ(eight, (ShardSizes{8, 4, 8}));
  EXPECT_EQ(fewest_shards(64, eight, 2), (ShardSizes{2, 1, 32}));
  EXPECT_EQ(fewest_shards(64, shard_sizes(64, 8, 1), 1), (ShardSizes{1, 1, 64}));
  EXPECT_EQ(fewest_shards(64, shard_sizes(64, 8, 3), 3),
            (ShardSizes{4, 2, 16}));  // 3 is no divisor
  EXPECT_EQ(fewest_shards(64, shard_sizes(64, 8, 8), 8), std::nullopt);
  EXPECT_EQ(fewest_shards(64, shard_sizes(64, 8, 5), 5), std::nullopt);
}

TEST(TrainShardCostTest, ACostAboveATenthIsSaidWithWhatToChoose) {
  ShardCost cost{shard_sizes(64, 8, 2), shard_sizes(64, 2, 2), 36, 20};
  EXPECT_EQ(
      spoken(cost),
      "on each worker 4 shards of 8 samples take 1.80 times as long, forward and backward, as "
      "1 shard of 32; a new job with --shards 2 would be faster, and could run on at most 2 "
      "workers");
  EXPECT_THAT(spoken(cost, 40), HasSubstr("8 instead of 2 cost about 16.0 of 40.0 ms: 4 shards"));
  // Most of the step is something else.
  EXPECT_THAT(spoken(cost, 200), IsEmpty());
  cost.now_ms = 21.9;
  EXPECT_THAT(spoken(cost), IsEmpty());
  EXPECT_THAT(spoken(cost, 24), IsEmpty());
  cost.now_ms = 36;
  EXPECT_THAT(spoken(cost, 10), IsEmpty()) << "steps that take less than was saved say nothing";
}

}  // namespace
}  // namespace lockstep::app
