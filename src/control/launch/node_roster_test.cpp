#include "control/launch/node_roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const NodeRoster::TimePoint kBegin{seconds(1000)};

NodeJoin launcher(std::uint32_t node, std::uint32_t workers, const std::string& host) {
  return {node, 3, workers, "0.1", "run train", host, 100 + node, "", 0};
}

std::string objection(const NodeJoin& join) {
  NodeRoster roster(launcher(0, 4, "a"));
  roster.add(1, launcher(1, 2, "b"), kBegin);
  const auto reason = roster.add(2, join, kBegin);
  return reason ? reason->why : "";
}

TEST(HostMapTest, RanksCountFromNodeToNode) {
  const HostMap map{1, {{"a", 4}, {"b", 1}, {"c", 2}}};
  EXPECT_EQ(map.world(), 7);
  EXPECT_EQ(map.first_rank(), 4);
  EXPECT_EQ(map.workers(), 1);
  EXPECT_EQ(map.node_of(3), 0);
  EXPECT_EQ(map.node_of(4), 1);
  EXPECT_EQ(map.node_of(6), 2);
  EXPECT_THAT(map.ranks_of(2), ElementsAre(5, 6));
  EXPECT_TRUE(map.here(4));
  EXPECT_FALSE(map.here(5));
  EXPECT_FALSE(map.is_rank(7));
  EXPECT_FALSE((HostMap{2, map.shares}.here(7))) << "of a host that has joined since";
  EXPECT_EQ(map.name_of(2), "node 2 (c)");
}

TEST(NodeRosterTest, JobBeginsWhenEveryNodeHasCome) {
  NodeRoster roster(launcher(0, 4, "a"));
  EXPECT_THAT(roster.missing(), ElementsAre(1, 2));
  EXPECT_FALSE(roster.add(7, launcher(2, 2, "c"), kBegin));
  EXPECT_FALSE(roster.whole());
  EXPECT_FALSE(roster.add(8, launcher(1, 1, "b"), kBegin));
  ASSERT_TRUE(roster.whole());
  EXPECT_EQ(roster.map().world(), 7);
  EXPECT_EQ(roster.map().name_of(1), "node 1 (b)");
  EXPECT_EQ(roster.node_of(7), 2);
  EXPECT_THAT(roster.connections(), ElementsAre(7, 8));
}

TEST(NodeRosterTest, WhatDoesNotAgreeIsNamedWithItsHost) {
  NodeJoin join = launcher(2, 2, "c");
  EXPECT_EQ(objection(join), "");
  join.build = "0.2";
  EXPECT_THAT(objection(join), HasSubstr("node 2 (c) has Lockstep 0.2, node 0 (a) has 0.1"));
  join = launcher(2, 2, "c");
  join.nodes = 4;
  EXPECT_THAT(objection(join), HasSubstr("node 2 (c) was started with --nodes 4"));
  join = launcher(2, 2, "c");
  join.job = "run other";
  EXPECT_THAT(objection(join), HasSubstr("node 2 (c) wants `lockstep run other`"));
  EXPECT_THAT(objection(launcher(1, 2, "c")),
              HasSubstr("--node-rank 1 was given twice, on b (pid 101) and on c (pid 101)"));
  EXPECT_THAT(objection(launcher(2, 5000, "c")), HasSubstr("too many"));
}

TEST(NodeRosterTest, ProblemOfAHostIsToldWithItsExitCode) {
  NodeRoster roster(launcher(0, 4, "a"));
  NodeJoin join = launcher(1, 4, "b");
  join.problem = "there is no ./train";
  join.code = 127;
  const auto reason = roster.add(1, join, kBegin);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->why, "node 1 (b): there is no ./train");
  EXPECT_EQ(reason->code, 127);
  EXPECT_EQ(roster.node_of(1), 1);  // it is told, too
}

TEST(NodeRosterTest, ProblemOfNode0IsToldToEveryNode) {
  NodeJoin first = launcher(0, 4, "a");
  first.problem = "there is no ./train";
  first.code = 127;
  NodeRoster roster(first);
  const auto reason = roster.add(1, launcher(1, 4, "b"), kBegin);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->why, "node 0 (a): there is no ./train");
}

TEST(NodeRosterTest, LauncherOfAnotherJobDoesNotHarmOneThatHasBegun) {
  NodeRoster roster(launcher(0, 4, "a"));
  roster.add(1, launcher(1, 4, "b"), kBegin);
  roster.add(2, launcher(2, 4, "c"), kBegin);
  roster.begin();
  const auto reason = roster.add(3, launcher(1, 4, "d"), kBegin);
  ASSERT_TRUE(reason);
  EXPECT_TRUE(reason->newcomer_only);
  EXPECT_EQ(roster.node_of(3), std::nullopt);
}

TEST(NodeRosterTest, AHostThatJoinsLaterIsTheNextNodeAlsoIfOneWasLost) {
  NodeRoster roster(launcher(0, 4, "a"));
  roster.add(1, launcher(1, 4, "b"), kBegin);
  roster.add(2, launcher(2, 4, "c"), kBegin);
  roster.begin();
  roster.remove(1);
  NodeJoin late = launcher(0, 2, "b");
  late.nodes = 0;
  EXPECT_FALSE(roster.objection_to_late(late));
  EXPECT_EQ(roster.take_in(3, late, kBegin), 3);
  EXPECT_EQ(roster.node_of(3), 3);
  EXPECT_THAT(roster.map().ranks_of(3), ElementsAre(12, 13));
  EXPECT_THAT(roster.connections(), ElementsAre(2, 3));
  const auto why = [&](const NodeJoin& join) {
    const auto reason = roster.objection_to_late(join);
    return reason && reason->newcomer_only ? reason->why : "";
  };
  late.workers = 5000;
  EXPECT_THAT(why(late), HasSubstr("5000 more are too many"));
  late.workers = 0;
  EXPECT_THAT(why(late), HasSubstr("too many"));
  late.workers = 2;
  late.build = "0.2";
  EXPECT_THAT(why(late), HasSubstr("the host b that wants to join has Lockstep 0.2"));
  late.build = "0.1";
  late.job = "run other";
  EXPECT_THAT(why(late), HasSubstr("wants `lockstep run other`"));
}

TEST(NodeRosterTest, SilentNodesAreThoseNotHeardOfSinceTheLimit) {
  NodeRoster roster(launcher(0, 4, "a"));
  roster.add(1, launcher(1, 4, "b"), kBegin);
  roster.add(2, launcher(2, 4, "c"), kBegin);
  roster.heard(2, kBegin + seconds(2));
  EXPECT_THAT(roster.silent(kBegin + seconds(3), seconds(3)), IsEmpty());
  EXPECT_THAT(roster.silent(kBegin + seconds(4), seconds(3)), ElementsAre(1));
  roster.remove(1);
  EXPECT_THAT(roster.silent(kBegin + seconds(4), seconds(3)), IsEmpty());
  EXPECT_EQ(roster.node_of(1), std::nullopt);
}

}  // namespace
}  // namespace lockstep::control
