#include "plan/hosts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "plan/expressions.h"

namespace lockstep::plan {
namespace {

// What an owner on a host computes when all other hosts have sent their nodes.
int play(Expressions& all, const Reduction& one_level, const TwoLevels& levels, int host) {
  const auto partial = [&](const LevelOperand& operand) {
    EXPECT_FALSE(operand.node);
    const ShardRange range =
        one_level.operands.at(one_level.first_of(operand.of) + operand.index).range;
    return by_definition(all, range.begin, range.end);
  };
  const auto node = [&](const LevelOperand& operand) {
    const LevelSum& sum = levels.hosts.at(operand.of).nodes.at(operand.index);
    std::vector<int> values;
    for (const LevelOperand& inner : sum.operands) {
      EXPECT_EQ(levels.host_of.at(inner.of), operand.of) << "a host adds what its workers hold";
      values.push_back(partial(inner));
    }
    return all.add_up(sum.plan, std::move(values));
  };
  const LevelSum& whole = levels.hosts.at(host).whole;
  std::vector<int> values;
  for (const LevelOperand& operand : whole.operands) {
    EXPECT_TRUE(operand.node || levels.host_of.at(operand.of) == host);
    values.push_back(operand.node ? node(operand) : partial(operand));
  }
  return all.add_up(whole.plan, std::move(values));
}

// Every way to put `workers` on at most four hosts, numbered by their first worker.
void for_every_placement(int workers, const std::function<void(const std::vector<int>&)>& check) {
  std::vector<int> host_of(static_cast<std::size_t>(workers));
  const std::function<void(int, int)> place = [&](int rank, int hosts) {
    if (rank == workers) return check(host_of);
    for (int host = 0; host <= std::min(hosts, 3); ++host) {
      host_of[static_cast<std::size_t>(rank)] = host;
      place(rank + 1, std::max(hosts, host + 1));
    }
  };
  place(0, 0);
}

TEST(TwoLevels, AreTheSameExpressionForEveryPlacement) {
  for (int workers = 1; workers <= 6; ++workers) {
    for (int shards = workers; shards <= 2 * workers + 3; ++shards) {
      const Reduction one_level = plan_reduction(shards, workers);
      for_every_placement(workers, [&](const std::vector<int>& host_of) {
        const TwoLevels levels = plan_two_levels(one_level, host_of);
        Expressions all;
        const int wanted = by_definition(all, 0, shards);
        for (int host = 0; host < static_cast<int>(levels.hosts.size()); ++host)
          EXPECT_EQ(play(all, one_level, levels, host), wanted) << shards << " on " << workers;
      });
    }
  }
}

TEST(TwoLevels, AHostWhoseShardsAreOneNodeSendsOneSum) {
  const TwoLevels levels = plan_two_levels(plan_reduction(8, 4), {0, 0, 1, 1});
  EXPECT_EQ(levels.hosts[0].nodes.size(), 1U);
  EXPECT_EQ(levels.hosts[1].nodes.size(), 1U);
  EXPECT_EQ(levels.hosts[0].whole.operands.size(), 3U) << "two partials and the other host's node";
  // 0 and 2 of four shards are no node: nothing can be added before it is sent.
  const TwoLevels apart = plan_two_levels(plan_reduction(4, 4), {0, 1, 0, 1});
  EXPECT_EQ(apart.hosts[0].nodes.size(), 2U);
}

TEST(TwoLevels, EverySliceHasAHandlerOnEveryOtherHost) {
  for_every_placement(6, [](const std::vector<int>& host_of) {
    const TwoLevels levels = plan_two_levels(plan_reduction(6, 6), host_of);
    for (int owner = 0; owner < 6; ++owner) {
      for (int host = 0; host < static_cast<int>(levels.hosts.size()); ++host)
        EXPECT_EQ(host_of[levels.handler(owner, host)], host);
    }
  });
}

TEST(TwoLevels, EveryHostOwnsAsMuchAsAnyOther) {
  const TwoLevels levels = plan_two_levels(plan_reduction(4, 4), {0, 1, 1, 1});
  const auto bounds = two_level_bounds(96 * 1024, 4, levels);
  EXPECT_EQ(bounds, (std::vector<std::size_t>{0, 48 * 1024, 64 * 1024, 80 * 1024, 96 * 1024}));
  // Short buffers leave some workers without a slice; together the slices are the buffer.
  for (std::size_t count : {0U, 1U, 17U, 33U, 1000U}) {
    const auto few = two_level_bounds(count, 4, levels);
    EXPECT_EQ(few.front(), 0U);
    EXPECT_EQ(few.back(), count);
    EXPECT_TRUE(std::is_sorted(few.begin(), few.end()));
  }
}

}  // namespace
}  // namespace lockstep::plan
