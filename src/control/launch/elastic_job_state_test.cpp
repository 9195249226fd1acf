// Jobs whose workers leave, join, and are given another number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

#include "control/launch/job_state.h"

namespace lockstep::control {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using After = Departures::After;
using How = WorkerEnd::How;

const JobState::Clock::time_point kNow{std::chrono::hours(1)};

class ElasticJobTest : public testing::Test {
 protected:
  // 4 workers of 2 to 8, which have met.
  static EndRules rules(int max_restarts = 10) {
    EndRules rules;
    rules.elastic = {.min_workers = 2, .max_restarts = max_restarts, .most_workers = 8};
    return rules;
  }
  ElasticJobTest() { state_.on_formed({0, 1, 2, 3}); }

  JobState::Orders end(int rank, How how, int value) {
    return state_.on_ends({{rank, how, value}}, now_);
  }
  JobState::Orders kill(int rank) { return end(rank, How::kKilled, SIGKILL); }
  std::string refusal_of(int workers) { return state_.on_resize(workers, now_).refusal; }

  JobState state_{4, rules()};
  JobState::Clock::time_point now_ = kNow;
};

TEST_F(ElasticJobTest, MoreWorkersAreStartedInTheNextPlaces) {
  const auto resized = state_.on_resize(6, now_);
  EXPECT_EQ(resized.refusal, "");
  EXPECT_THAT(resized.orders.start, ElementsAre(4, 5));
  EXPECT_EQ(resized.orders.places, 6);
  EXPECT_EQ(state_.live(), 6);
  EXPECT_EQ(state_.replaced(), 0) << "they replace nobody";
}

TEST_F(ElasticJobTest, FewerWorkersLeaveWhenTheyAreBetweenTwoBatches) {
  const auto resized = state_.on_resize(2, now_);
  EXPECT_THAT(resized.orders.kill, IsEmpty()) << "they train";
  EXPECT_THAT(state_.on_dismissed(3).kill, ElementsAre(3));
  EXPECT_THAT(state_.on_dismissed(2).kill, ElementsAre(2));
  const auto orders =
      state_.on_ends({{2, How::kKilled, SIGKILL}, {3, How::kKilled, SIGKILL}}, now_);
  EXPECT_THAT(orders.start, IsEmpty());
  ASSERT_EQ(orders.left.size(), 2u);
  EXPECT_EQ(orders.left[0].outcome.after, After::kResized);
  EXPECT_THAT(describe(orders.left[0], 10, 30), HasSubstr("rank 2 has left"));
  EXPECT_EQ(state_.left(), 0);
  EXPECT_EQ(state_.live(), 2);
  end(0, How::kExited, 0);
  EXPECT_TRUE(end(1, How::kExited, 0).release);
  EXPECT_EQ(state_.exit_code(), 0);
}

TEST_F(ElasticJobTest, AWorkerThatHasNotJoinedIsEndedAtOnce) {
  state_.on_resize(5, now_);
  EXPECT_THAT(state_.on_resize(4, now_).orders.kill, ElementsAre(4));
  EXPECT_THAT(kill(4).start, IsEmpty());
}

TEST_F(ElasticJobTest, AWorkerThatIsNotWantedIsNotReplaced) {
  state_.on_resize(3, now_);
  EXPECT_THAT(kill(3).start, IsEmpty());
  EXPECT_THAT(kill(2).start, ElementsAre(2)) << "this one is wanted";
}

// The keeper names the dead in the order of their processes, and a replacement has a later one.
TEST_F(ElasticJobTest, IfAllDieTheOrderOfThoseThatAreNotWantedDoesNotMatter) {
  state_.on_resize(2, now_);
  const auto orders = state_.on_ends({{3, How::kKilled, SIGKILL},
                                      {2, How::kKilled, SIGKILL},
                                      {0, How::kKilled, SIGKILL},
                                      {1, How::kKilled, SIGKILL}},
                                     now_);
  EXPECT_THAT(orders.start, ElementsAre(0, 1));
  EXPECT_EQ(state_.cause(), JobState::Cause::kNone);
}

TEST_F(ElasticJobTest, AWorkerThatIsWantedAgainStartsWhenTheOldOneHasEnded) {
  state_.on_resize(3, now_);
  state_.on_dismissed(3);
  EXPECT_THAT(state_.on_resize(4, now_).orders.start, IsEmpty());
  EXPECT_THAT(kill(3).start, ElementsAre(3));
}

TEST_F(ElasticJobTest, SizesThatCannotBeAreRefusedAndChangeNothing) {
  EXPECT_EQ(refusal_of(1), "it can have 2 to 8 workers");
  EXPECT_EQ(refusal_of(9), "it can have 2 to 8 workers");
  EXPECT_EQ(state_.wanted(), 4);
  JobState fixed(2, EndRules{});
  EXPECT_THAT(fixed.on_resize(3, now_).refusal, HasSubstr("is fixed"));
  end(0, How::kExited, 0);
  EXPECT_EQ(refusal_of(3), "it has reached its end");
  state_.on_signal(SIGTERM, now_);
  EXPECT_EQ(refusal_of(3), "it is ending");
}

TEST_F(ElasticJobTest, ANewcomerThatCannotJoinDoesNotEndTheJob) {
  kill(1);
  state_.on_started(1, now_);
  const auto orders = end(1, How::kExited, 1);
  EXPECT_THAT(orders.start, IsEmpty()) << "it would fail again";
  ASSERT_EQ(orders.left.size(), 1u);
  EXPECT_EQ(orders.left[0].outcome.after, After::kRefused);
  EXPECT_EQ(describe(orders.left[0], 10, 30),
            "rank 1 could not join and exited with code 1; 3 workers go on without it");
  EXPECT_EQ(state_.cause(), JobState::Cause::kNone);
  EXPECT_EQ(state_.on_resize(4, now_).orders.start, std::vector<int>{1}) << "the user asks for it";
}

// In the second loop of a program, say.
TEST_F(ElasticJobTest, WhereNobodyCanJoinTheOthersGoOnWithoutOneThatDied) {
  kill(3);
  state_.on_started(3, now_);
  EXPECT_THAT(state_.on_closed().kill, ElementsAre(3)) << "it waits to join";
  EXPECT_THAT(state_.on_closed().kill, IsEmpty()) << "each of them says it";
  EXPECT_THAT(kill(3).start, IsEmpty());
  const auto orders = kill(1);
  EXPECT_THAT(orders.start, IsEmpty());
  ASSERT_EQ(orders.left.size(), 1u);
  EXPECT_EQ(describe(orders.left[0], 10, 30),
            "rank 1 was killed by SIGKILL; 2 workers go on without it: nobody can join a later "
            "loop of a program");
  EXPECT_THAT(refusal_of(3), HasSubstr("nobody can join or leave"));
  EXPECT_THAT(state_.objection_to_host(), HasSubstr("nobody can join or leave"));
  EXPECT_EQ(state_.cause(), JobState::Cause::kNone);
}

TEST_F(ElasticJobTest, IfAllDieWhereNobodyCanJoinAllBeginAgain) {
  state_.on_closed();
  EXPECT_THAT(kill(1).start, IsEmpty());
  const auto orders = state_.on_ends(
      {{0, How::kKilled, SIGKILL}, {2, How::kKilled, SIGKILL}, {3, How::kKilled, SIGKILL}}, now_);
  EXPECT_THAT(orders.start, ElementsAre(0, 1, 2, 3));
  state_.on_formed({0, 1, 2, 3});
  EXPECT_THAT(kill(1).start, ElementsAre(1)) << "this generation can be joined";
}

// The others have returned from main(), and what it was about to write is missing.
TEST_F(ElasticJobTest, ALeaderThatDiesWhileTheOthersReachTheEndIsTheCauseOfAFailure) {
  state_.on_goodbye(1);
  EXPECT_EQ(kill(0).left.size(), 1u) << "they may form the next generation";
  end(1, How::kExited, 0);
  EXPECT_EQ(state_.cause(), JobState::Cause::kFailure);
  EXPECT_EQ(state_.exit_code(), 128 + SIGKILL);
  ASSERT_TRUE(state_.failure());
  EXPECT_EQ(state_.failure()->cause.rank, 0);
}

TEST_F(ElasticJobTest, ALeaderIsReplacedByTheNextGeneration) {
  kill(0);
  state_.on_formed({1, 2, 3});
  for (const int rank : {1, 2}) end(rank, How::kExited, 0);
  EXPECT_TRUE(end(3, How::kExited, 0).release);
  EXPECT_EQ(state_.exit_code(), 0);
}

TEST_F(ElasticJobTest, OnlyWorkersThatTrainAreSaidToGoOn) {
  const auto said = [](const JobState::Orders& orders) {
    return describe(orders.left.at(0), 10, 30);
  };
  EXPECT_THAT(said(kill(1)), HasSubstr("; 3 workers go on, and a replacement starts"));
  EXPECT_EQ(state_.live(), 4) << "a replacement is starting";
  EXPECT_THAT(said(kill(2)), HasSubstr("; 2 workers go on, and a replacement starts"));
  EXPECT_THAT(said(kill(2)), HasSubstr("; 2 workers go on, and a replacement starts"))
      << "a replacement that dies was not among those that train";
  state_.on_expelled(3);
  EXPECT_EQ(state_.going_on(), 1) << "one that is being ended does not go on";
  EXPECT_THAT(said(kill(0)), HasSubstr("rank 0 was killed by SIGKILL; a replacement starts"));
  EXPECT_THAT(said(kill(3)), HasSubstr("for it; a replacement starts"));
  state_.on_formed({0, 1, 2, 3});
  EXPECT_EQ(state_.going_on(), 4);
}

TEST_F(ElasticJobTest, WorkersThatDieTogetherAreNotSaidToGoOn) {
  const auto orders =
      state_.on_ends({{1, How::kKilled, SIGKILL}, {2, How::kKilled, SIGKILL}}, now_);
  ASSERT_EQ(orders.left.size(), 2u);
  for (const auto& one : orders.left) EXPECT_EQ(one.live, 2);
}

TEST_F(ElasticJobTest, AHostThatIsLostLeavesThoseThatTrain) {
  kill(0);  // its replacement is starting
  state_.on_host_lost({2, 3}, now_);
  EXPECT_EQ(state_.cause(), JobState::Cause::kNone);
  EXPECT_EQ(state_.going_on(), 1);
}

// Its launcher has not said that they have ended. The leader has: nothing is left to do.
TEST_F(ElasticJobTest, AHostThatIsLostBehindTheEndOfTheJobCostsNothing) {
  end(0, How::kExited, 0);
  end(1, How::kExited, 0);
  EXPECT_TRUE(state_.on_host_lost({2, 3}, now_).release);
  EXPECT_EQ(state_.cause(), JobState::Cause::kNone);
  EXPECT_EQ(state_.exit_code(), 0);
}

TEST_F(ElasticJobTest, TheHostOfTheLeaderThatHasNotEndedIsNeededAtTheEnd) {
  end(2, How::kExited, 0);
  end(3, How::kExited, 0);
  state_.on_host_lost({0, 1}, now_);
  EXPECT_EQ(state_.cause(), JobState::Cause::kHostLost);
}

TEST_F(ElasticJobTest, AHostThatLeavesIsNotReplaced) {
  kill(3);  // its replacement has not joined
  const auto orders = state_.on_host_leaves({2, 3}, now_);
  ASSERT_TRUE(orders);
  EXPECT_THAT(orders->kill, ElementsAre(3));
  EXPECT_THAT(orders->dismiss, ElementsAre(2, 3));
  EXPECT_EQ(kill(3).left.at(0).outcome.after, After::kHostLeft);
  EXPECT_THAT(state_.on_dismissed(2).kill, ElementsAre(2));
  const auto left = kill(2);
  EXPECT_EQ(left.left.at(0).outcome.after, After::kHostLeft);
  EXPECT_THAT(left.start, IsEmpty());
  EXPECT_EQ(state_.going_on(), 2);
  EXPECT_THAT(state_.on_time(now_ + std::chrono::hours(1)).start, IsEmpty());
  EXPECT_EQ(state_.cause(), JobState::Cause::kNone);
}

TEST_F(ElasticJobTest, AHostThatDoesNotLeaveInTimeIsKilled) {
  ASSERT_TRUE(state_.on_host_leaves({2, 3}, now_));
  const auto deadline = state_.deadline();
  ASSERT_TRUE(deadline);
  EXPECT_THAT(state_.on_time(*deadline).kill, ElementsAre(2, 3));
  EXPECT_THAT(state_.on_time(*deadline).kill, IsEmpty());
}

TEST_F(ElasticJobTest, AHostThatIsNeededCannotLeave) {
  EXPECT_FALSE(state_.on_host_leaves({1, 2, 3}, now_));
  end(0, How::kExited, 0);
  EXPECT_FALSE(state_.on_host_leaves({3}, now_)) << "the job has reached its end";
}

TEST_F(ElasticJobTest, WorkersOfAHostThatJoinsAreNewcomersAndReplaced) {
  EXPECT_EQ(state_.objection_to_host(), "");
  state_.on_host_joined({4, 5});
  EXPECT_EQ(state_.live(), 6);
  EXPECT_EQ(state_.going_on(), 4) << "they have not joined the others";
  EXPECT_EQ(end(4, How::kExited, 1).left.at(0).outcome.after, After::kRefused);
  EXPECT_THAT(kill(5).start, ElementsAre(5));
  state_.on_formed({0, 1, 2, 3, 5});
  EXPECT_EQ(state_.going_on(), 5);
  state_.on_host_lost({4, 5}, now_);
  EXPECT_EQ(state_.cause(), JobState::Cause::kNone);
  EXPECT_EQ(state_.live(), 4);
  EXPECT_EQ(state_.going_on(), 4);
}

TEST_F(ElasticJobTest, PlacesOfALostHostStayEmpty) {
  state_.on_host_lost({1}, now_);
  EXPECT_EQ(state_.wanted(), 3);
  EXPECT_EQ(refusal_of(8), "it can have 2 to 7 workers");
  const auto more = state_.on_resize(4, now_).orders;
  EXPECT_THAT(more.start, ElementsAre(4));
  EXPECT_EQ(more.places, 5);
  const auto fewer = state_.on_resize(2, now_).orders;
  EXPECT_THAT(fewer.kill, ElementsAre(4)) << "it has not joined; 3 leaves between two batches";
  EXPECT_EQ(fewer.places, 3);
  EXPECT_THAT(kill(2).start, ElementsAre(2));
}

TEST_F(ElasticJobTest, AHostThatJoinsDoesNotBringBackWhatAResizeTookAway) {
  state_.on_resize(3, now_);
  state_.on_dismissed(3);
  kill(3);
  state_.on_host_joined({8, 9});
  EXPECT_EQ(state_.wanted(), 5);
  EXPECT_EQ(state_.most(), 10);
  const auto more = state_.on_resize(6, now_).orders;
  EXPECT_THAT(more.start, ElementsAre(3));
  EXPECT_THAT(more.kill, IsEmpty());
  EXPECT_EQ(more.places, 10);
  EXPECT_THAT(state_.on_resize(5, now_).orders.kill, ElementsAre(9));
}

TEST_F(ElasticJobTest, AWorkerThatHasNotLeftYetStaysIfAHostJoins) {
  state_.on_resize(3, now_);
  state_.on_host_joined({8});
  EXPECT_EQ(state_.wanted(), 5);
  EXPECT_THAT(kill(3).start, ElementsAre(3));
}

TEST_F(ElasticJobTest, AHostThatComesTooLateIsNotTakenIn) {
  EXPECT_EQ(JobState(2, EndRules{}).objection_to_host(),
            "its workers are fixed; start it with --max-restarts");
  end(0, How::kExited, 0);
  EXPECT_EQ(state_.objection_to_host(), "it has reached its end");
  state_.on_signal(SIGTERM, now_);
  EXPECT_EQ(state_.objection_to_host(), "it is ending");
}

TEST_F(ElasticJobTest, AMemberThatFailsEndsTheJobAsEver) {
  EXPECT_THAT(end(1, How::kExited, 1).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state_.exit_code(), 1);
}

TEST_F(ElasticJobTest, AReplacementOfProgramsThatNeverMeetEndsTheJobWithItsCode) {
  JobState scripts(2, rules());
  scripts.on_ends({{1, How::kKilled, SIGKILL}}, now_);
  scripts.on_ends({{1, How::kExited, 7}}, now_);
  EXPECT_EQ(scripts.exit_code(), 7);
}

TEST_F(ElasticJobTest, AReplacementThatCannotBeStartedIsTriedAgainLater) {
  EXPECT_THAT(kill(1).start, ElementsAre(1));
  EXPECT_THAT(end(1, How::kNotStarted, EAGAIN).start, ElementsAre(1));
  const auto third = end(1, How::kNotStarted, EAGAIN);
  EXPECT_THAT(third.start, IsEmpty());
  ASSERT_EQ(third.left.size(), 1u);
  EXPECT_THAT(describe(third.left[0], 10, 30), HasSubstr("a replacement starts in 1 s"));
  EXPECT_EQ(state_.deadline(), now_ + seconds(1));
  EXPECT_THAT(state_.on_time(now_ + seconds(1)).start, ElementsAre(1));
}

TEST_F(ElasticJobTest, AFirstWorkerThatCannotBeStartedEndsTheJob) {
  end(1, How::kNotStarted, EAGAIN);
  EXPECT_EQ(state_.cause(), JobState::Cause::kFailure);
}

TEST_F(ElasticJobTest, WhenTheWindowHasMovedOnAPlaceIsTriedAgain) {
  JobState state(4, rules(1));
  state.on_formed({0, 1, 2, 3});
  EXPECT_THAT(state.on_ends({{1, How::kKilled, SIGKILL}}, kNow).start, ElementsAre(1));
  const auto orders = state.on_ends({{2, How::kKilled, SIGKILL}}, kNow + minutes(1));
  EXPECT_THAT(orders.start, IsEmpty());
  EXPECT_THAT(describe(orders.left[0], 1, 30),
              HasSubstr("no restart is left (--max-restarts 1) for 540 s"));
  EXPECT_EQ(state.deadline(), kNow + minutes(10));
  EXPECT_THAT(state.on_time(kNow + minutes(10)).start, ElementsAre(2));
}

TEST_F(ElasticJobTest, AWorkerThatIsKilledBehindTheEndHasDoneItsPart) {
  for (int rank = 0; rank < 4; ++rank) state_.on_goodbye(rank);
  for (int rank = 0; rank < 3; ++rank) end(rank, How::kExited, 0);
  const auto orders = end(3, How::kKilled, SIGSEGV);
  EXPECT_TRUE(orders.release);
  EXPECT_EQ(state_.exit_code(), 0);
  ASSERT_EQ(orders.left.size(), 1u);
  EXPECT_THAT(describe(orders.left[0], 10, 30), HasSubstr("it had reached the end of the job"));
}

TEST_F(ElasticJobTest, ALeaderThatIsKilledBehindTheEndMayHaveHadSomethingToWrite) {
  for (int rank = 0; rank < 4; ++rank) state_.on_goodbye(rank);
  for (int rank = 1; rank < 4; ++rank) end(rank, How::kExited, 0);
  kill(0);
  EXPECT_EQ(state_.exit_code(), 137);
}

TEST_F(ElasticJobTest, AWorkerThatIsKilledBeforeTheEndIsAFailureWhenTheOthersHaveEnded) {
  for (int rank = 0; rank < 3; ++rank) end(rank, How::kExited, 0);
  kill(3);
  EXPECT_EQ(state_.exit_code(), 137);
}

}  // namespace
}  // namespace lockstep::control
