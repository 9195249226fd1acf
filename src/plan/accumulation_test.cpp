#include "plan/accumulation.h"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

// Five shards on two workers: three and two.
TEST(SeparateShards, HaveABankEachAndAreAddedInTheOrderOfTheTree) {
  const ShardedReduction plan = plan_separate_shards(5, 2);
  EXPECT_EQ(plan.banks, 3);
  ASSERT_EQ(plan.workers.size(), 2U);
  EXPECT_EQ(plan.workers[1].banks, 2);
  for (const Accumulation& worker : plan.workers) {
    for (std::size_t i = 0; i < worker.steps.size(); ++i) {
      EXPECT_TRUE(worker.steps[i].begins);
      EXPECT_TRUE(worker.steps[i].before.empty());
      EXPECT_EQ(worker.steps[i].bank, static_cast<int>(i));
      EXPECT_EQ(worker.held[i].range.begin, worker.steps[i].shard);
      EXPECT_EQ(worker.held[i].range.size(), 1);
    }
  }
  EXPECT_EQ(plan.sum.shards, 5);
  EXPECT_EQ(plan.sum.workers, 2);
  EXPECT_EQ(plan.sum.first_of(1), 3);
  EXPECT_EQ(plan.sum.count_of(1), 2);
  EXPECT_EQ(plan.sum.additions, plan_reduction(5, 5).additions);
}

}  // namespace
}  // namespace lockstep::plan
