#include "control/launch/blame.h"

#include <gtest/gtest.h>

#include <csignal>

#include "control/launch/test_support.h"

namespace lockstep::control {
namespace {

WorkerEnd cause_of(const std::vector<WorkerEnd>& together) {
  Blame blame;
  blame.on_ends(together);
  return blame.verdict()->cause;
}

TEST(BlameTest, SuccessIsNoFailure) {
  Blame blame;
  blame.on_ends({exited(0, 0), exited(1, 0)});
  EXPECT_FALSE(blame.verdict());
}

TEST(BlameTest, CrashIsBlamedBeforeTheExitOfItsPeers) {
  EXPECT_EQ(cause_of({exited(0, 1), exited(1, 0), killed(2, SIGSEGV)}), killed(2, SIGSEGV));
  EXPECT_EQ(cause_of({exited(1, 3), exited(0, 1)}), exited(1, 3));
  EXPECT_EQ(cause_of({killed(1, SIGABRT), killed(0, SIGSEGV)}), killed(1, SIGABRT));
}

TEST(BlameTest, WithoutAWordTheFirstFailureIsTheCause) {
  Blame blame;
  blame.on_ends({exited(0, 1)});
  EXPECT_FALSE(blame.verdict()->open);
  blame.on_ends({killed(1, SIGSEGV)});
  EXPECT_EQ(blame.verdict()->cause, exited(0, 1));
  EXPECT_EQ(blame.verdict()->lost, std::nullopt);
}

TEST(BlameTest, WhoLostAnotherWaitsForThatOnesEnd) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_ends({exited(0, 1)});
  EXPECT_TRUE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(0, 1));
  EXPECT_EQ(blame.verdict()->lost, 1);
  blame.on_ends({exited(1, 7)});
  EXPECT_FALSE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(1, 7));
  EXPECT_EQ(blame.verdict()->lost, std::nullopt);
}

TEST(BlameTest, OfThoseThatEndTogetherTheOneThatLostNobodyIsFirst) {
  Blame blame;
  blame.on_loss(0, 2);
  blame.on_loss(1, 2);
  blame.on_ends({exited(0, 1), exited(1, 1), exited(2, 7)});
  EXPECT_EQ(blame.verdict()->cause, exited(2, 7));
}

TEST(BlameTest, TheTrailIsFollowedToItsEnd) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_loss(1, 2);
  blame.on_ends({exited(0, 1)});
  blame.on_ends({exited(1, 1)});
  EXPECT_TRUE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->lost, 2);
  blame.on_ends({killed(2, SIGKILL)});
  EXPECT_EQ(blame.verdict()->cause, killed(2, SIGKILL));
}

TEST(BlameTest, AWorkerThatLeftInPeaceIsNamedAsLost) {
  Blame blame;
  blame.on_ends({exited(1, 0)});
  blame.on_loss(0, 1);
  blame.on_ends({exited(0, 1)});
  EXPECT_FALSE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(0, 1));
  EXPECT_EQ(blame.verdict()->lost, 1);
  EXPECT_EQ(blame.end_of(1), exited(1, 0));
}

TEST(BlameTest, AWorkerThatHasJoinedAgainAnswersForItself) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_loss(0, std::nullopt);
  blame.on_loss(1, 0);
  blame.on_ends({exited(1, 1)});
  blame.on_ends({exited(0, 3)});
  EXPECT_EQ(blame.verdict()->cause, exited(0, 3));
}

TEST(BlameTest, WorkersThatLostEachOtherEndTheTrail) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_loss(1, 0);
  blame.on_ends({exited(1, 3)});
  EXPECT_FALSE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(1, 3));
  EXPECT_EQ(blame.verdict()->lost, 0);
}

}  // namespace
}  // namespace lockstep::control
