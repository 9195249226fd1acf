// The rendezvous of a job whose workers may leave and join.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/rendezvous/roster.h"

namespace lockstep::control {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const TimePoint kOnTime{std::chrono::hours(1)};

class ElasticRosterTest : public testing::Test {
 protected:
  static Join join_of(int place, bool in_batch = false) {
    return Join{.id = 1,
                .rank = static_cast<std::uint32_t>(place),
                .size = 3,
                .wait_ms = 100'000,
                .timeout_ms = 100'000,
                .build = "0.1.0",
                .engine = "shm",
                .host = "node",
                .pid = 7,
                .in_batch = in_batch};
  }
  // A worker of this place comes, over a new connection.
  ConnectionId join(int place, bool in_batch = false, TimePoint now = kOnTime) {
    EXPECT_TRUE(roster_.take(++last_, join_of(place, in_batch), now, answers_));
    return last_;
  }
  // The workers of the generation that was just welcomed have connected.
  void connect() {
    std::vector<ConnectionId> welcomed;
    for (const Answer& answer : answers_) {
      if (std::holds_alternative<Welcome>(answer.message)) welcomed.push_back(answer.to);
    }
    for (const ConnectionId id : welcomed)
      EXPECT_TRUE(roster_.take(id, Done{2, 1000}, kOnTime, answers_));
    for (const ConnectionId id : welcomed) roster_.lost(id, answers_);
  }
  void form_all() {
    for (int place = 0; place < 3; ++place) join(place);
    connect();
    answers_.clear();
    roster_.take_events();
  }
  void alive(std::set<int> places) { roster_.set_alive(std::move(places), kOnTime, answers_); }
  const Welcome* welcome_of(ConnectionId connection) const {
    for (const Answer& answer : answers_) {
      if (answer.to == connection && std::holds_alternative<Welcome>(answer.message))
        return &std::get<Welcome>(answer.message);
    }
    return nullptr;
  }

  RendezvousRoster roster_{3, MembershipRules{.least = 1, .patience = seconds(30)}};
  Answers answers_;
  ConnectionId last_ = 0;
};

TEST_F(ElasticRosterTest, TheFirstGenerationHasEverybodyAndNoPast) {
  const ConnectionId second = join(1);
  join(0);
  EXPECT_THAT(answers_, IsEmpty());
  join(2);
  ASSERT_NE(welcome_of(second), nullptr);
  EXPECT_EQ(welcome_of(second)->rank, 1u);
  EXPECT_THAT(welcome_of(second)->places, ElementsAre(0, 1, 2));
  EXPECT_EQ(welcome_of(second)->survivors, 0u);
  EXPECT_FALSE(welcome_of(second)->restarted);
}

// Its process has ended, and the end of its connection has not been read yet.
TEST_F(ElasticRosterTest, AWorkerThatDiesWhileAGenerationFormsIsNotSaidToBeInIt) {
  std::vector<ConnectionId> all;
  for (int place = 0; place < 3; ++place) all.push_back(join(place));
  for (const ConnectionId id : {all[0], all[2]})
    EXPECT_TRUE(roster_.take(id, Done{2, 1000}, kOnTime, answers_));
  alive({0, 1});
  alive({0, 1, 2});  // its replacement
  EXPECT_TRUE(roster_.take(all[1], Done{2, 1000}, kOnTime, answers_));
  const auto events = roster_.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].places, ElementsAre(0, 1));
  for (const ConnectionId id : all) roster_.lost(id, answers_);
  answers_.clear();
  join(2);
  join(0);
  const ConnectionId other = join(1);
  ASSERT_NE(welcome_of(other), nullptr);
  EXPECT_EQ(welcome_of(other)->survivors, 2u) << "the replacement is a newcomer";
}

TEST_F(ElasticRosterTest, WorkersOfAHostThatHasJoinedComeInNewPlaces) {
  form_all();
  Join fourth = join_of(3);
  fourth.size = 4;
  EXPECT_TRUE(roster_.take(++last_, fourth, kOnTime, answers_));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Failed>(answers_[0].message)) << "there is no such place";
  answers_.clear();
  roster_.set_places(4);
  alive({0, 1, 2, 3});
  EXPECT_TRUE(roster_.take(++last_, fourth, kOnTime, answers_));
  EXPECT_EQ(roster_.newcomers(), 1);
  const ConnectionId newcomer = last_;
  for (int place = 0; place < 3; ++place) join(place);  // they were told of 3
  ASSERT_NE(welcome_of(newcomer), nullptr);
  EXPECT_EQ(welcome_of(newcomer)->rank, 3u);
  EXPECT_EQ(welcome_of(newcomer)->survivors, 3u);
}

TEST_F(ElasticRosterTest, SurvivorsGetNewRanksWhenTheDeadIsKnownToBeDead) {
  form_all();
  join(1, true);
  const ConnectionId last = join(2, true);
  EXPECT_THAT(answers_, IsEmpty()) << "place 0 may still run";
  alive({1, 2});
  ASSERT_NE(welcome_of(last), nullptr);
  EXPECT_EQ(welcome_of(last)->rank, 1u);
  EXPECT_THAT(welcome_of(last)->places, ElementsAre(1, 2));
  EXPECT_EQ(welcome_of(last)->survivors, 2u);
}

TEST_F(ElasticRosterTest, AReplacementWaitsUntilTheOthersCome) {
  form_all();
  alive({1, 2});
  alive({0, 1, 2});  // its process is another one
  const ConnectionId newcomer = join(0);
  EXPECT_EQ(roster_.newcomers(), 1);
  join(1);
  join(2);
  ASSERT_NE(welcome_of(newcomer), nullptr);
  EXPECT_THAT(welcome_of(newcomer)->places, ElementsAre(1, 2, 0));
  EXPECT_EQ(welcome_of(newcomer)->survivors, 2u);
  EXPECT_EQ(roster_.newcomers(), 0);
}

TEST_F(ElasticRosterTest, AnAttemptThatFailsIsFollowedByAnother) {
  form_all();
  alive({1, 2});
  join(1, true);
  const ConnectionId dies = join(2, true);
  answers_.clear();
  roster_.lost(dies, answers_);
  alive({1});
  const ConnectionId again = join(1, true);
  ASSERT_NE(welcome_of(again), nullptr);
  EXPECT_THAT(welcome_of(again)->places, ElementsAre(1));
}

TEST_F(ElasticRosterTest, AWorkerThatIsExpelledIsWaitedForUntilItIsDead) {
  form_all();
  join(1, true);
  const ConnectionId last = join(2, true);
  for (int i = 0; i < 3; ++i) roster_.tick(kOnTime + seconds(31 + i), answers_);
  const auto events = roster_.take_events();
  ASSERT_EQ(events.size(), 1u) << "it is told once";
  EXPECT_EQ(events[0].kind, RendezvousRoster::Event::Kind::kExpelled);
  EXPECT_THAT(events[0].places, ElementsAre(0));
  EXPECT_EQ(welcome_of(last), nullptr) << "it may still write";
  alive({1, 2});
  EXPECT_NE(welcome_of(last), nullptr);
}

TEST_F(ElasticRosterTest, IfNobodySurvivesTheJobIsRestarted) {
  form_all();
  alive({});
  alive({0, 1, 2});
  join(0);
  join(1);
  const ConnectionId last = join(2);
  ASSERT_NE(welcome_of(last), nullptr);
  EXPECT_TRUE(welcome_of(last)->restarted);
  EXPECT_EQ(welcome_of(last)->survivors, 0u);
}

TEST_F(ElasticRosterTest, ANewcomerOfAnotherBuildIsSentAwayAndTheJobGoesOn) {
  form_all();
  alive({1, 2});
  alive({0, 1, 2});
  Join other = join_of(0);
  other.build = "9.9.9";
  EXPECT_TRUE(roster_.take(++last_, other, kOnTime, answers_));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_THAT(std::get<Failed>(answers_[0].message).message, HasSubstr("runs Lockstep 9.9.9"));
  EXPECT_EQ(roster_.newcomers(), 0);
}

TEST_F(ElasticRosterTest, WorkersThatAreTooManyAreSentAwayBetweenTwoBatches) {
  form_all();
  roster_.set_wanted(2, kOnTime, answers_);
  EXPECT_EQ(roster_.newcomers(), 1) << "the others are to meet";
  const ConnectionId first = join(0);
  join(1);
  EXPECT_THAT(roster_.take_events(), IsEmpty());
  join(2);
  const auto events = roster_.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, RendezvousRoster::Event::Kind::kDismissed);
  EXPECT_THAT(events[0].places, ElementsAre(2));
  EXPECT_EQ(welcome_of(first), nullptr) << "until it is dead";
  alive({0, 1});
  ASSERT_NE(welcome_of(first), nullptr);
  EXPECT_THAT(welcome_of(first)->places, ElementsAre(0, 1));
  EXPECT_EQ(roster_.newcomers(), 0);
}

TEST_F(ElasticRosterTest, AJobThatIsGivenItsWorkersBackKeepsThem) {
  form_all();
  roster_.set_wanted(2, kOnTime, answers_);
  roster_.set_wanted(3, kOnTime, answers_);
  EXPECT_EQ(roster_.newcomers(), 0);
}

TEST_F(ElasticRosterTest, WaitsEnd) {
  form_all();
  join(1);
  roster_.tick(kOnTime + seconds(101), answers_);
  ASSERT_FALSE(answers_.empty());
  EXPECT_EQ(std::get<Failed>(answers_.back().message).kind, ErrorKind::kTimeout);
}

TEST_F(ElasticRosterTest, ClosingSendsAwayThoseWhoWait) {
  form_all();
  join(1);
  roster_.close(answers_);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].message, Message(Closing{}));
}

}  // namespace
}  // namespace lockstep::control
