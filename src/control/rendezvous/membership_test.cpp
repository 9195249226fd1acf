#include "control/rendezvous/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Time = std::chrono::steady_clock::time_point;

const MembershipRules kRules{.least = 2, .patience = seconds(30)};

Candidate at_rest(int place, Time since = {}) {
  return {place, false, since};
}
Candidate in_batch(int place, Time since = {}) {
  return {place, true, since};
}

TEST(MembershipTest, TheFirstGenerationWaitsForEverybodyWhoRuns) {
  Membership now{.alive = {0, 1, 2}, .last = {}, .waiting = {at_rest(2), at_rest(0)}};
  EXPECT_THAT(next_members(now, kRules, Time(seconds(1000))).forms, IsEmpty());
  EXPECT_THAT(next_members(now, kRules, Time(seconds(1000))).expelled, IsEmpty()) << "it starts";
  now.waiting.push_back(at_rest(1));
  EXPECT_THAT(next_members(now, kRules, {}).forms, ElementsAre(0, 1, 2));
}

TEST(MembershipTest, SurvivorsGoOnWithoutADeadWorkerAndKeepTheirOrder) {
  const Membership now{
      .alive = {0, 2, 3}, .last = {3, 1, 0, 2}, .waiting = {at_rest(0), at_rest(2), at_rest(3)}};
  EXPECT_THAT(next_members(now, kRules, {}).forms, ElementsAre(3, 0, 2));
}

TEST(MembershipTest, NobodyGoesOnWhileAWorkerOfTheLastGenerationMayStillRun) {
  const Membership now{.alive = {0, 1, 2}, .last = {0, 1, 2}, .waiting = {at_rest(0), at_rest(2)}};
  const auto verdict = next_members(now, kRules, Time(seconds(1)));
  EXPECT_THAT(verdict.forms, IsEmpty());
  EXPECT_THAT(verdict.expelled, IsEmpty());
  EXPECT_EQ(verdict.ask_again, Time(seconds(30)));
  EXPECT_EQ(verdict.reason, "waits for 1");
}

TEST(MembershipTest, AWorkerThatOthersWaitForInVainIsExpelled) {
  const Membership now{.alive = {0, 1, 2},
                       .last = {0, 1, 2},
                       .waiting = {at_rest(0, Time(seconds(7))), at_rest(2, Time(seconds(5)))}};
  EXPECT_THAT(next_members(now, kRules, Time(seconds(34))).expelled, IsEmpty());
  EXPECT_THAT(next_members(now, kRules, Time(seconds(35))).expelled, ElementsAre(1));
}

TEST(MembershipTest, WhileNobodyWaitsForItNobodyIsExpelled) {
  // The others train, and only a newcomer waits.
  const Membership now{.alive = {0, 1, 2}, .last = {0, 1}, .waiting = {at_rest(2)}};
  const auto verdict = next_members(now, kRules, Time(seconds(1'000'000)));
  EXPECT_THAT(verdict.expelled, IsEmpty());
  EXPECT_THAT(verdict.forms, IsEmpty());
}

TEST(MembershipTest, NewcomersComeInBetweenTwoBatchesBehindTheOthers) {
  Membership now{.alive = {0, 1, 2, 3},
                 .last = {2, 1},
                 .waiting = {at_rest(3), at_rest(1), at_rest(0), at_rest(2)}};
  EXPECT_THAT(next_members(now, kRules, {}).forms, ElementsAre(2, 1, 0, 3));
  now.waiting = {at_rest(3), in_batch(1), at_rest(0), in_batch(2)};
  EXPECT_THAT(next_members(now, kRules, {}).forms, ElementsAre(2, 1)) << "in a batch nobody joins";
}

TEST(MembershipTest, TooFewWait) {
  Membership now{.alive = {1, 2}, .last = {0, 1}, .waiting = {at_rest(1)}};
  EXPECT_THAT(next_members(now, kRules, Time(seconds(999))).forms, IsEmpty());
  now.waiting.push_back(at_rest(2));
  EXPECT_THAT(next_members(now, kRules, {}).forms, ElementsAre(1, 2));
}

TEST(MembershipTest, IfNobodySurvivesTheNewWorkersBegin) {
  Membership now{.alive = {0, 1}, .last = {0, 1, 2}, .waiting = {}};
  now.last = {2, 3};
  now.waiting = {at_rest(1)};
  EXPECT_THAT(next_members(now, kRules, {}).forms, IsEmpty()) << "0 starts";
  now.waiting.push_back(at_rest(0));
  EXPECT_THAT(next_members(now, kRules, {}).forms, ElementsAre(0, 1));
}

// They may have died one after the other: the process of the last replacement does not run yet when the first is here.
TEST(MembershipTest, IfNobodySurvivesTheFirstReplacementWaitsForOthersThatMayCome) {
  Membership now{.alive = {1, 2}, .last = {}, .waiting = {at_rest(1), at_rest(2)}, .before = 3};
  const auto verdict = next_members(now, kRules, Time(milliseconds(999)));
  EXPECT_THAT(verdict.forms, IsEmpty());
  EXPECT_EQ(verdict.ask_again, Time(seconds(1)));
  EXPECT_THAT(next_members(now, kRules, Time(seconds(1))).forms, ElementsAre(1, 2));
  now.before = 2;
  EXPECT_THAT(next_members(now, kRules, {}).forms, ElementsAre(1, 2)) << "as many as before";
}

TEST(MembershipTest, FewerWorkersLeaveWhenAllAreBetweenTwoBatches) {
  const MembershipRules fewer{.least = 2, .wanted = 2};
  Membership now{.alive = {0, 1, 2, 3}, .last = {3, 0, 1, 2}, .waiting = {at_rest(3), at_rest(0)}};
  EXPECT_THAT(to_dismiss(now, fewer), ElementsAre(3, 2));
  EXPECT_THAT(next_members(now, fewer, {}).dismissed, IsEmpty()) << "some train";
  now.waiting = {at_rest(0), in_batch(1), at_rest(2), at_rest(3)};
  EXPECT_THAT(next_members(now, fewer, {}).dismissed, IsEmpty()) << "a step is to be repeated";
  EXPECT_THAT(next_members(now, fewer, {}).forms, ElementsAre(3, 0, 1, 2));
  now.waiting = {at_rest(0), at_rest(1), at_rest(2), at_rest(3)};
  const auto verdict = next_members(now, fewer, {});
  EXPECT_THAT(verdict.dismissed, ElementsAre(3, 2));
  EXPECT_THAT(verdict.forms, IsEmpty()) << "until they are dead";
  now.alive = {0, 1};
  now.waiting = {at_rest(0), at_rest(1)};
  EXPECT_THAT(next_members(now, fewer, {}).forms, ElementsAre(0, 1));
}

TEST(MembershipTest, NobodyLeavesIfTooFewWouldStay) {
  const MembershipRules fewer{.least = 2, .wanted = 2};
  Membership now{
      .alive = {1, 2, 3}, .last = {1, 2, 3}, .waiting = {at_rest(1), at_rest(2), at_rest(3)}};
  EXPECT_THAT(to_dismiss(now, fewer), IsEmpty()) << "place 0 starts";
  EXPECT_THAT(next_members(now, fewer, {}).forms, ElementsAre(1, 2, 3));
  now.alive.insert(0);
  now.waiting.push_back(at_rest(0));
  EXPECT_THAT(next_members(now, fewer, {}).dismissed, ElementsAre(2, 3));
  now = {.alive = {0, 1, 2}, .last = {2}, .waiting = {at_rest(0), at_rest(1), at_rest(2)}};
  EXPECT_THAT(next_members(now, fewer, {}).forms, ElementsAre(2, 0, 1))
      << "only place 2 has the state, so the others learn from it first";
}

TEST(MembershipTest, WorkersOfAHostThatLeavesGoBetweenTwoBatches) {
  const MembershipRules rules{.least = 1, .leaving = {0, 1}};
  Membership now{.alive = {0, 1, 2, 3}, .last = {0, 1, 2}, .waiting = {at_rest(3)}};
  EXPECT_THAT(to_dismiss(now, rules), ElementsAre(0, 1)) << "also the leader";
  now.waiting = {at_rest(0), at_rest(1), at_rest(2), at_rest(3)};
  EXPECT_THAT(next_members(now, rules, {}).dismissed, ElementsAre(0, 1));
  now.alive = {1, 2, 3};
  now.last = {2};
  now.waiting = {at_rest(1), at_rest(2), at_rest(3)};
  EXPECT_THAT(next_members(now, rules, {}).forms, ElementsAre(2, 3)) << "1 is not taken in again";
}

TEST(MembershipTest, ANewcomerThatIsNotWantedStaysOutside) {
  const MembershipRules fewer{.least = 1, .wanted = 2};
  const Membership now{
      .alive = {0, 1, 2}, .last = {0, 1}, .waiting = {at_rest(0), at_rest(1), at_rest(2)}};
  EXPECT_THAT(next_members(now, fewer, {}).forms, ElementsAre(0, 1));
}

TEST(MembershipTest, WithoutWorkersNothingForms) {
  EXPECT_THAT(next_members({}, kRules, {}).forms, IsEmpty());
}

}  // namespace
}  // namespace lockstep::control
