#include "plan/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <string>

namespace lockstep::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kJob = "0f1e2d3c4b5a6978";

// Two shards, three steps. The last task of step 1 has taken weights before the others were there.
RoundOrder some_round(std::int64_t first) {
  return {{first, first + 3},
          {{first, 1, 0},
           {first, 0, 0},
           {first + 1, 0, 2},
           {first + 2, 0, 2},
           {first + 1, 1, 1},
           {first + 2, 1, 5}}};
}

std::string refused_order(const std::string& text) {
  try {
    parse_order(text, "run.order");
  } catch (const BadInput& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Order, IsReadAsItWasWritten) {
  const std::string text =
      order_head(kJob, 2) + order_text(some_round(0)) + order_text(some_round(3));
  const Order order = parse_order(text, "run.order");
  EXPECT_EQ(order.shards, 2);
  EXPECT_EQ(order.job, kJob);
  EXPECT_THAT(order.rounds, ElementsAre(some_round(0), some_round(3)));
  EXPECT_EQ(*order.find(3), some_round(3));
  EXPECT_EQ(order.find(1), nullptr);
  EXPECT_TRUE(parse_order(order_head(kJob, 2), "run.order").rounds.empty());
}

TEST(Order, TasksTakeWeightsBeforeTheUpdateThatChangesThem) {
  EXPECT_THAT(some_round(0).pulls(), ElementsAre(0, 1, 4, 2, 3, 5));
  EXPECT_THAT(some_round(0).pulls_before(), ElementsAre(2, 3, 5, 5, 5, 6));
}

TEST(Order, AJobThatHasGoneBackWritesItsRoundsAgain) {
  RoundOrder other = some_round(3);
  std::swap(other.updates[0], other.updates[1]);
  const std::string text = order_head(kJob, 2) + order_text(some_round(0)) +
                           order_text(some_round(3)) + order_text(some_round(6)) +
                           order_text(other);
  EXPECT_THAT(parse_order(text, "run.order").rounds, ElementsAre(some_round(0), other));
}

TEST(Order, WhatAKilledWriterHasLeftOfARoundDoesNotCount) {
  const std::string whole = order_head(kJob, 2) + order_text(some_round(0));
  const std::string next = order_text(some_round(3));
  for (std::size_t bytes = 0; bytes < next.size(); ++bytes)
    EXPECT_THAT(parse_order(whole + next.substr(0, bytes), "run.order").rounds,
                ElementsAre(some_round(0)))
        << bytes;
  EXPECT_TRUE(parse_order(whole + next.substr(0, 20), "run.order").is_cut);
  EXPECT_FALSE(parse_order(whole + next, "run.order").is_cut);
}

TEST(Order, WhatIsNoOrderIsRefusedWithItsLine) {
  const std::string head = order_head(kJob, 2);
  EXPECT_THAT(refused_order(""), HasSubstr("run.order is empty"));
  EXPECT_THAT(refused_order("{}\n"), HasSubstr("line 1 is not the head of an order"));
  const std::string job = "lockstep order 1\njob " + kJob + "\n";
  EXPECT_THAT(refused_order("lockstep order 1\n"), HasSubstr("line 1 says no job"));
  EXPECT_THAT(refused_order("lockstep order 1\njob 12\n"), HasSubstr("line 2 says no job"));
  EXPECT_THAT(refused_order(job), HasSubstr("line 2 says no shards"));
  EXPECT_THAT(refused_order(job + "shards 0\n"), HasSubstr("line 3 says no shards"));
  EXPECT_THAT(refused_order(job + "shards two\n"), HasSubstr("line 3 has no number"));
  EXPECT_THAT(refused_order(head + "0 0 0\n"), HasSubstr("line 4 does not begin with 'round'"));
  EXPECT_THAT(refused_order(head + "round 0 0 0\n"), HasSubstr("line 4 has a round of no steps"));
  EXPECT_THAT(refused_order(head + "round 0 1\n"), HasSubstr("line 4 has too few numbers"));
  EXPECT_THAT(refused_order(head + "round 0 1 1 1\n"), HasSubstr("line 4 has too many numbers"));
  EXPECT_THAT(refused_order(head + "round 0 2 1\n2 0 0\n"),
              HasSubstr("line 5 has no number from 0 to 1"));
  EXPECT_THAT(refused_order(head + "round 0 2 1\n1 2 0\n"),
              HasSubstr("line 5 has no number from 0 to 1"));
  EXPECT_THAT(refused_order(head + "round 0 2 1\n1 0 1\n"),
              HasSubstr("line 5 has no number from 0 to 0"));
  EXPECT_THAT(refused_order(head + "round 1 2 1\n0 0 0\n"), HasSubstr("a step before its round"));
  EXPECT_THAT(refused_order(head + "round 0 2 2\n0 0 0\n0 0 1\n"),
              HasSubstr("line 6 has a shard of a step"));
  EXPECT_THAT(refused_order(head + "round 0 2 0\nround 1 2 0\n"),
              HasSubstr("in the middle of the one"));
  EXPECT_THAT(refused_order(head + "round 99999999999999999999 2 0\n"),
              HasSubstr("line 4 has no number"));
}

TEST(Order, AnUpdateKeepsItsRateUntilItIsStalerThanShardsAreMany) {
  EXPECT_EQ(rate_if_stale(0, 4), 1);
  EXPECT_EQ(rate_if_stale(3, 4), 1);
  EXPECT_EQ(rate_if_stale(7, 4), 0.5);
  EXPECT_EQ(rate_if_stale(4, 1), 0.2);
}

}  // namespace
}  // namespace lockstep::plan
