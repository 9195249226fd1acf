#include "control/launch/restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using After = Departures::After;

const Restarts::Clock::time_point kFirstDeath{std::chrono::hours(1)};

TEST(RestartsTest, AWorkerThatRanForLongStartsAgainAtOnce) {
  Restarts restarts(10);
  restarts.on_start(1, kFirstDeath);
  const auto end = kFirstDeath + Restarts::kSoon;
  EXPECT_EQ(restarts.on_end(1, end)->when, end);
  EXPECT_EQ(restarts.next(), end);
  EXPECT_THAT(restarts.due(end), ElementsAre(1));
  EXPECT_THAT(restarts.due(end), IsEmpty()) << "only once";
  EXPECT_EQ(restarts.next(), std::nullopt);
}

TEST(RestartsTest, APlaceThatDiesSoonWaitsLongerEachTime) {
  Restarts restarts(100);
  auto now = kFirstDeath;
  for (const int wait : {0, 1, 2, 4, 8, 16, 30, 30}) {
    restarts.on_start(0, now);
    now += seconds(3);
    ASSERT_EQ(restarts.on_end(0, now)->when, now + seconds(wait));
    now += seconds(wait);
    EXPECT_THAT(restarts.due(now - std::chrono::nanoseconds(1)), IsEmpty());
    EXPECT_THAT(restarts.due(now), ElementsAre(0));
  }
  restarts.on_start(0, now);
  now += seconds(60);
  EXPECT_EQ(restarts.on_end(0, now)->when, now) << "it ran for a minute: all is forgotten";
}

TEST(RestartsTest, EachPlaceWaitsForItself) {
  Restarts restarts(100);
  for (int death = 0; death < 3; ++death) {
    restarts.on_start(0, kFirstDeath);
    restarts.on_end(0, kFirstDeath);
  }
  restarts.on_start(1, kFirstDeath);
  EXPECT_EQ(restarts.on_end(1, kFirstDeath)->when, kFirstDeath);
  EXPECT_THAT(restarts.due(kFirstDeath), ElementsAre(1));
  EXPECT_EQ(restarts.next(), kFirstDeath + seconds(2));
  EXPECT_EQ(restarts.waiting(), 1);
  restarts.drop();
  EXPECT_EQ(restarts.next(), std::nullopt);
}

TEST(RestartsTest, NoMoreThanTheLimitWithinTenMinutes) {
  Restarts restarts(2);
  EXPECT_TRUE(restarts.on_end(0, kFirstDeath)->left);
  EXPECT_TRUE(restarts.on_end(1, kFirstDeath + minutes(5))->left);
  const auto third = restarts.on_end(2, kFirstDeath + minutes(6));
  EXPECT_FALSE(third->left);
  EXPECT_EQ(third->when, kFirstDeath + minutes(10)) << "ten minutes after the first";
  EXPECT_EQ(restarts.waiting(), 2) << "it does not start soon";
  const auto fourth = restarts.on_end(3, kFirstDeath + minutes(7));
  EXPECT_EQ(fourth->when, kFirstDeath + minutes(15)) << "ten minutes after the second";
  EXPECT_THAT(restarts.due(kFirstDeath + minutes(10)), ElementsAre(0, 1, 2));
  EXPECT_THAT(restarts.due(kFirstDeath + minutes(15)), ElementsAre(3));
  EXPECT_EQ(restarts.done(), 4);
}

TEST(RestartsTest, NoneIsALimit) {
  EXPECT_FALSE(Restarts(0).on_end(0, kFirstDeath));
}

TEST(DeparturesTest, GoesOnWithoutAWorkerAsLongAsEnoughAreLeft) {
  Departures departures({.min_workers = 2, .max_restarts = 1}, 4);
  EXPECT_EQ(departures.on_left(3, 3, kFirstDeath).after, After::kReplaced);
  EXPECT_THAT(departures.due(kFirstDeath), ElementsAre(3));
  EXPECT_EQ(departures.on_left(3, 3, kFirstDeath).after, After::kNoRestart);
  EXPECT_EQ(departures.on_left(2, 2, kFirstDeath).after, After::kNoRestart);
  EXPECT_EQ(departures.on_left(1, 1, kFirstDeath).after, After::kTooFew);
  EXPECT_EQ(departures.left(), 3);
  EXPECT_EQ(departures.replaced(), 1);
}

TEST(DeparturesTest, AReplacementThatIsOnItsWayCounts) {
  Departures departures({.min_workers = 1, .max_restarts = 1}, 4);
  EXPECT_EQ(departures.on_left(0, 0, kFirstDeath).after, After::kReplaced);
  EXPECT_EQ(departures.on_left(1, 0, kFirstDeath).after, After::kNoRestart);
}

TEST(DeparturesTest, NobodyIsReplacedOnceAMemberHasReachedTheEnd) {
  Departures departures({}, 4);
  departures.on_formed({0, 1, 2});
  EXPECT_EQ(departures.on_left(2, 2, kFirstDeath).after, After::kReplaced);
  departures.on_ended_well(0);
  EXPECT_FALSE(departures.waiting());
  EXPECT_FALSE(departures.done());
  departures.on_ended_well(1);
  EXPECT_TRUE(departures.done());
}

TEST(DeparturesTest, AMemberThatDiesWhileTheOthersFinishIsNotReplaced) {
  Departures departures({}, 4);
  departures.on_formed({0, 1, 2});
  departures.on_ended_well(0);
  EXPECT_EQ(departures.on_left(1, 1, kFirstDeath).after, After::kFinishing);
  EXPECT_EQ(departures.on_left(2, 0, kFirstDeath).after, After::kTooFew);
}

TEST(DeparturesTest, WorkersThatNeverMetAreIndependent) {
  Departures departures({}, 4);
  departures.on_ended_well(0);
  EXPECT_EQ(departures.on_left(1, 0, kFirstDeath).after, After::kReplaced);
  EXPECT_FALSE(departures.done());
}

}  // namespace
}  // namespace lockstep::control
