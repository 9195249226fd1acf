#include "control/rendezvous/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const TimePoint kStart{std::chrono::hours(1)};

Join join_of(std::uint32_t rank, std::uint32_t size, const std::string& engine = "tcp") {
  return Join{1,         rank, size, 9800, 10'000, "0.1.0", engine, "node" + std::to_string(rank),
              100 + rank};
}

// A roster whose connections are numbered like the ranks.
class RosterTest : public testing::Test {
 protected:
  Answers take(ConnectionId from, const Message& message, TimePoint now = kStart) {
    Answers answers;
    EXPECT_TRUE(roster_.take(from, message, now, answers));
    return answers;
  }
  Answers lost(ConnectionId connection) {
    Answers answers;
    roster_.lost(connection, answers);
    return answers;
  }
  Answers tick(TimePoint now) {
    Answers answers;
    roster_.tick(now, answers);
    return answers;
  }
  void join_all() {
    for (std::uint32_t rank = 0; rank < 4; ++rank) take(rank, join_of(rank, 4));
  }

  RendezvousRoster roster_{4};
};

Failed failure_to(const Answers& answers, ConnectionId connection) {
  for (const Answer& answer : answers) {
    if (answer.to == connection && std::holds_alternative<Failed>(answer.message)) {
      return std::get<Failed>(answer.message);
    }
  }
  ADD_FAILURE() << "connection " << connection << " was told no failure";
  return {};
}

TEST(RanksText, ReadsLikeASentence) {
  EXPECT_EQ(ranks_text({2}), "rank 2");
  EXPECT_EQ(ranks_text({2, 3}), "ranks 2 and 3");
  EXPECT_EQ(ranks_text({1, 2, 5}), "ranks 1, 2 and 5");
  EXPECT_EQ(ranks_text({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST_F(RosterTest, TheLastToComeBringsEverybodysWelcome) {
  EXPECT_TRUE(take(0, join_of(0, 4)).empty());
  EXPECT_TRUE(take(3, join_of(3, 4)).empty());
  EXPECT_TRUE(take(1, join_of(1, 4)).empty());
  const Answers answers = take(2, join_of(2, 4));
  ASSERT_EQ(answers.size(), 4u);
  const Welcome first = std::get<Welcome>(answers[0].message);
  EXPECT_EQ(first.places, (std::vector<int>{0, 1, 2, 3}));
  for (const Answer& answer : answers) {
    Welcome expected = first;
    expected.rank = static_cast<std::uint32_t>(answer.to);  // as which it joined
    EXPECT_EQ(std::get<Welcome>(answer.message), expected);
  }
  EXPECT_EQ(first.generation, 1u);
  EXPECT_EQ(roster_.next_tick(), std::nullopt);
}

TEST_F(RosterTest, AGetWaitsForItsPut) {
  join_all();
  EXPECT_TRUE(take(0, Get{5, 1000, "key"}).empty());
  EXPECT_TRUE(take(1, Get{6, 1000, "key"}).empty());
  const Answers answers = take(2, Put{7, "key", "value"});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].message, Message(Stored{7}));
  EXPECT_EQ(answers[1].message, Message(Value{5, "value"}));
  EXPECT_EQ(answers[2].message, Message(Value{6, "value"}));
  EXPECT_EQ(take(3, Get{8, 0, "key"})[0].message, Message(Value{8, "value"}));
}

TEST_F(RosterTest, AKeyIsPutOnce) {
  join_all();
  take(0, Put{1, "key", "first"});
  EXPECT_EQ(failure_to(take(1, Put{2, "key", "second"}), 1).kind, ErrorKind::kMismatch);
  EXPECT_EQ(take(2, Get{3, 0, "key"})[0].message, Message(Value{3, "first"}));
}

TEST_F(RosterTest, AWorldThatNeverCompletesNamesTheMissing) {
  take(0, join_of(0, 4));
  take(1, join_of(1, 4), kStart + milliseconds(50));
  ASSERT_EQ(roster_.next_tick(), kStart + milliseconds(9800));
  EXPECT_TRUE(tick(kStart + milliseconds(9799)).empty());
  const Answers answers = tick(kStart + milliseconds(9800));
  for (const ConnectionId connection : {0, 1}) {
    const Failed failed = failure_to(answers, connection);
    EXPECT_EQ(failed.kind, ErrorKind::kTimeout);
    EXPECT_EQ(failed.ranks, (std::vector<int>{2, 3}));
    EXPECT_THAT(failed.message, HasSubstr("ranks 2 and 3 of 4 have not joined after 10 s"));
  }
}

TEST_F(RosterTest, AGetThatRunsOutFailsAloneAndNamesTheKey) {
  join_all();
  take(0, Get{5, 100, "never"});
  take(1, Get{6, 5000, "never"});
  const Answers answers = tick(kStart + milliseconds(100));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(failure_to(answers, 0).message, HasSubstr("\"never\" within 0.1 s"));
}

TEST_F(RosterTest, ADeadWorkerEndsEveryWaitAndIsNamed) {
  join_all();
  take(0, Put{4, "there", "value"});
  take(0, Get{5, 1000, "key"});
  take(1, Done{6, 1000});
  const Answers answers = lost(2);
  for (const ConnectionId connection : {0, 1}) {
    const Failed failed = failure_to(answers, connection);
    EXPECT_EQ(failed.kind, ErrorKind::kPeerLost);
    EXPECT_EQ(failed.ranks, std::vector<int>{2});
    EXPECT_THAT(failed.message, HasSubstr("rank 2 (pid 102 on node2)"));
  }
  EXPECT_EQ(failure_to(take(3, Get{7, 1000, "other"}), 3).kind, ErrorKind::kPeerLost);
  EXPECT_EQ(take(3, Get{8, 0, "there"})[0].message, Message(Value{8, "value"}));
}

TEST_F(RosterTest, AWorkerThatGivesUpIsQuoted) {
  join_all();
  take(0, Get{5, 1000, "key"});
  const Failed failed = failure_to(take(1, GiveUp{"no route to host"}), 0);
  EXPECT_EQ(failed.kind, ErrorKind::kPeerLost);
  EXPECT_THAT(failed.message, HasSubstr("rank 1 (pid 101 on node1) could not connect: no route"));
}

TEST_F(RosterTest, WorkersThatDisagreeAreNamed) {
  take(0, join_of(0, 4));
  const Answers answers = take(2, join_of(2, 4, "mpi"));
  for (const ConnectionId connection : {0, 2}) {
    const Failed failed = failure_to(answers, connection);
    EXPECT_EQ(failed.kind, ErrorKind::kMismatch);
    EXPECT_THAT(failed.message, HasSubstr("rank 2 joins with engine mpi, rank 0 with tcp"));
  }
}

TEST_F(RosterTest, AnotherWorldSizeOrBuildIsAMismatch) {
  EXPECT_THAT(failure_to(take(0, join_of(0, 8)), 0).message, HasSubstr("told of 8 workers"));
  RendezvousRoster fresh(4);
  Answers answers;
  Join newer = join_of(1, 4);
  newer.build = "0.2.0";
  fresh.take(0, join_of(0, 4), kStart, answers);
  fresh.take(1, newer, kStart, answers);
  EXPECT_THAT(failure_to(answers, 0).message,
              HasSubstr("rank 1 runs Lockstep 0.2.0, rank 0 runs 0.1.0"));
}

TEST_F(RosterTest, TwoProcessesOfOneRankAreAMismatch) {
  take(0, join_of(0, 4));
  const Answers answers = take(9, join_of(0, 4));
  EXPECT_THAT(failure_to(answers, 0).message, HasSubstr("two processes joined as rank 0"));
  EXPECT_EQ(failure_to(answers, 9).kind, ErrorKind::kMismatch);
}

TEST_F(RosterTest, WhoComesAfterTheFailureHearsOfItOnceAndThenMayTryAgain) {
  take(0, join_of(0, 4));
  take(1, join_of(1, 4));
  lost(1);
  EXPECT_EQ(failure_to(take(2, join_of(2, 4)), 2).ranks, std::vector<int>{1});
  // Everybody again, on new connections; rank 3 has not heard yet.
  EXPECT_TRUE(take(10, join_of(0, 4)).empty());
  EXPECT_TRUE(take(11, join_of(1, 4)).empty());
  EXPECT_TRUE(take(12, join_of(2, 4)).empty());
  const Answers answers = take(13, join_of(3, 4));
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(std::get<Welcome>(answers[0].message).generation, 2u);
}

TEST_F(RosterTest, AllDoneEndsTheGenerationAndLeavingIsThenNoLoss) {
  join_all();
  take(0, Put{8, "key", "value"});
  for (const ConnectionId connection : {0, 1, 2})
    EXPECT_TRUE(take(connection, Done{9, 1000}).empty());
  EXPECT_EQ(take(3, Done{9, 1000}).size(), 4u);
  EXPECT_TRUE(lost(0).empty());
  // The next to join are the next generation, with nothing of the last.
  for (std::uint32_t rank = 0; rank < 4; ++rank) take(10 + rank, join_of(rank, 4));
  EXPECT_TRUE(take(10, Get{1, 1000, "key"}).empty());
}

TEST_F(RosterTest, DoneThatNeverCompletesNamesTheSlow) {
  join_all();
  take(0, Done{9, 1000});
  const Failed failed = failure_to(tick(kStart + milliseconds(1000)), 0);
  EXPECT_EQ(failed.kind, ErrorKind::kTimeout);
  EXPECT_EQ(failed.ranks, (std::vector<int>{1, 2, 3}));
}

TEST_F(RosterTest, MessagesOutOfPlaceAreNotTaken) {
  Answers answers;
  EXPECT_FALSE(roster_.take(0, Put{1, "key", "value"}, kStart, answers));
  EXPECT_FALSE(roster_.take(0, join_of(4, 4), kStart, answers));
  EXPECT_FALSE(roster_.take(0, Welcome{}, kStart, answers));
  take(0, join_of(0, 4));
  EXPECT_FALSE(roster_.take(0, join_of(1, 4), kStart, answers));
  EXPECT_FALSE(roster_.take(0, Value{}, kStart, answers));
  // Before everybody has come there is nothing to be done with.
  EXPECT_FALSE(roster_.take(0, Done{2, 100}, kStart, answers));
  EXPECT_TRUE(answers.empty());
}

TEST_F(RosterTest, AClosingRosterStillTellsItsFailureToThoseWhoHaveNotHeard) {
  for (std::uint32_t rank = 0; rank < 3; ++rank) take(rank, join_of(rank, 4));
  lost(1);
  Answers answers;
  roster_.close(answers);
  EXPECT_TRUE(roster_.has_news());
  EXPECT_EQ(take(10, join_of(0, 4))[0].message, Message(Closing{}));
  EXPECT_EQ(failure_to(take(3, join_of(3, 4)), 3).ranks, std::vector<int>{1});
  EXPECT_FALSE(roster_.has_news());
}

TEST_F(RosterTest, RanksOutsideOfTheWorldAreNotAmongThoseWhoMustHear) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) take(rank, join_of(rank, 4));
  for (std::uint32_t rank = 5; rank < 8; ++rank)
    EXPECT_EQ(failure_to(take(rank, join_of(rank, 8)), rank).kind, ErrorKind::kMismatch);
  EXPECT_TRUE(roster_.has_news());
  for (std::uint32_t rank = 2; rank < 4; ++rank)
    EXPECT_EQ(failure_to(take(rank, join_of(rank, 4)), rank).kind, ErrorKind::kMismatch);
  EXPECT_FALSE(roster_.has_news());
}

TEST_F(RosterTest, ClosingSendsAwayThoseWhoWaitAndThoseWhoCome) {
  take(0, join_of(0, 4));
  Answers answers;
  roster_.close(answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].message, Message(Closing{}));
  EXPECT_EQ(take(1, join_of(1, 4))[0].message, Message(Closing{}));
}

TEST_F(RosterTest, WorkersThatWereSentAwayAndGoAreNoNews) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) take(rank, join_of(rank, 4));
  Answers answers;
  roster_.close(answers);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_TRUE(lost(0).empty());
  EXPECT_TRUE(lost(1).empty());
  EXPECT_FALSE(roster_.has_news());
}

}  // namespace
}  // namespace lockstep::control
