#include "control/launch/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using EventKind = JobEvent::Kind;

const JobEvents::Clock::time_point kJobBegan{std::chrono::hours(1)};

JobEvents::Clock::time_point ms_in(int ms) {
  return kJobBegan + milliseconds(ms);
}

class JobEventsTest : public ::testing::Test {
 protected:
  JobEventsTest() : events(map, kJobBegan) {
    for (const int worker : {0, 1, 2, 3}) events.on_started(worker, ms_in(0));
    events.on_formed(1, {0, 1, 2, 3}, ms_in(500));
  }
  void kill(int worker, int ms) {
    events.on_left({.end = {worker, WorkerEnd::How::kKilled, SIGKILL}}, "it died", ms_in(ms));
  }
  JobEvent last() const { return events.list().empty() ? JobEvent{} : events.list().back(); }

  HostMap map{0, {{"a", 2}, {"b", 2}}};
  JobEvents events;
};

TEST_F(JobEventsTest, TheFirstGenerationIsNoEvent) {
  EXPECT_TRUE(events.list().empty());
}

TEST_F(JobEventsTest, ADeathCostsTheTimeUntilTheOthersTrain) {
  kill(2, 1000);
  EXPECT_EQ(last().kind, EventKind::kKilled);
  EXPECT_EQ(last().worker, 2);
  EXPECT_EQ(last().host, "b");
  EXPECT_EQ(last().value, SIGKILL);
  EXPECT_EQ(last().text, "it died");
  EXPECT_DOUBLE_EQ(last().at_s, 1.0);
  EXPECT_EQ(last().generation, std::nullopt) << "none has formed yet";
  events.on_formed(2, {0, 1, 3}, ms_in(1040));
  EXPECT_EQ(last().kind, EventKind::kKilled) << "nobody has joined";
  EXPECT_EQ(last().generation, 2U);
  EXPECT_NEAR(last().formed_ms.value(), 40, 1e-6);
  EXPECT_EQ(last().first_phase_ms, std::nullopt);
  events.on_first_phase(ms_in(1100));
  EXPECT_NEAR(last().first_phase_ms.value(), 100, 1e-6);
}

TEST_F(JobEventsTest, APhaseIsThatOfTheLastGeneration) {
  kill(2, 1000);
  events.on_formed(2, {0, 1, 3}, ms_in(1040));
  kill(1, 1050);
  events.on_formed(4, {0, 3}, ms_in(1090));
  events.on_first_phase(ms_in(1150));
  ASSERT_EQ(events.list().size(), 2U);
  EXPECT_EQ(events.list()[0].generation, 2U);
  EXPECT_EQ(events.list()[0].first_phase_ms, std::nullopt) << "it was not done";
  EXPECT_EQ(events.list()[1].generation, 4U);
  EXPECT_NEAR(events.list()[1].first_phase_ms.value(), 100, 1e-6);
}

TEST_F(JobEventsTest, AReplacementJoins) {
  kill(3, 1000);
  events.on_started(3, ms_in(1010));
  events.on_formed(2, {0, 1, 2}, ms_in(1040));
  events.on_formed(3, {0, 1, 2, 3}, ms_in(1510));
  EXPECT_EQ(last().kind, EventKind::kJoined);
  EXPECT_EQ(last().worker, 3);
  EXPECT_EQ(last().generation, 3U);
  EXPECT_NEAR(last().starting_ms.value(), 500, 1e-6);
  EXPECT_EQ(last().formed_ms, std::nullopt) << "nobody has measured how long the others waited";
  events.on_first_phase(ms_in(1530));
  EXPECT_NEAR(last().first_phase_ms.value(), 20, 1e-6);
}

TEST_F(JobEventsTest, AWorkerThatHangsIsAnEventWhenItIsEnded) {
  events.on_expelled(1, 30, ms_in(40'000));
  EXPECT_TRUE(events.list().empty()) << "its process lives";
  events.on_left({.end = {1, WorkerEnd::How::kKilled, SIGKILL}, .expelled = true}, "",
                 ms_in(40'050));
  EXPECT_EQ(last().kind, EventKind::kHung);
  EXPECT_DOUBLE_EQ(last().at_s, 40);
  EXPECT_EQ(last().waited_s, 30);
}

TEST_F(JobEventsTest, IfNobodySurvivesTheJobBeginsAgain) {
  for (const int worker : {0, 1, 2, 3}) kill(worker, 1000);
  for (const int worker : {0, 1, 2, 3}) events.on_started(worker, ms_in(1010));
  events.on_formed(2, {0, 1, 2, 3}, ms_in(2000));
  ASSERT_EQ(events.list().size(), 5U);
  EXPECT_EQ(last().kind, EventKind::kBeganAgain);
  EXPECT_NEAR(events.list()[0].formed_ms.value(), 1000, 1e-6);
}

TEST_F(JobEventsTest, OtherEventsSayWhatTheyAre) {
  events.on_resized(3, "", ms_in(600));
  EXPECT_EQ(last().kind, EventKind::kResized);
  EXPECT_EQ(last().value, 3);
  events.on_left(
      {.end = {3, WorkerEnd::How::kKilled, SIGTERM}, .outcome = {Departures::After::kResized}}, "",
      ms_in(700));
  EXPECT_EQ(last().kind, EventKind::kLeft);
  events.on_left({.end = {2, WorkerEnd::How::kExited, 1}, .outcome = {Departures::After::kRefused}},
                 "", ms_in(700));
  EXPECT_EQ(last().kind, EventKind::kRefused);
  events.on_left({.end = {2, WorkerEnd::How::kExited, 1}}, "", ms_in(700));
  EXPECT_EQ(last().kind, EventKind::kExited);
  events.on_left({.end = {2, WorkerEnd::How::kNotStarted, ENOENT}}, "", ms_in(700));
  EXPECT_EQ(last().kind, EventKind::kNotStarted);
  events.on_host_gone(1, JobEvents::HostIs::kLost, "", ms_in(800));
  EXPECT_EQ(last().kind, EventKind::kHostLost);
  EXPECT_EQ(last().host, "b");
}

TEST_F(JobEventsTest, TheEndIsAnEventOnlyIfTheJobWasCutShort) {
  events.finish(std::nullopt, "");
  EXPECT_TRUE(events.list().empty());
  events.on_ending(ms_in(900));
  events.on_ending(ms_in(1000));
  events.finish(2, "rank 2 exited with code 7");
  EXPECT_EQ(last().kind, EventKind::kEnded);
  EXPECT_DOUBLE_EQ(last().at_s, 0.9);
  EXPECT_EQ(last().worker, 2);
  EXPECT_EQ(last().generation, std::nullopt);
}

TEST(FirstPhaseTest, IsDoneWhenItsWorkerGoesOn) {
  FirstPhase phase;
  phase.begin(1, 7, ms_in(0));
  EXPECT_EQ(phase.worker(), 1);
  EXPECT_EQ(phase.look({Doing::kElse, 7}, ms_in(5)), std::nullopt) << "not begun";
  EXPECT_EQ(phase.look({Doing::kComputes, 8}, ms_in(10)), std::nullopt);
  EXPECT_EQ(phase.look({Doing::kWaits, 8}, ms_in(15)), std::nullopt);
  EXPECT_EQ(phase.look({Doing::kElse, 8}, ms_in(20)), std::nullopt) << "it may have failed";
  EXPECT_EQ(phase.look({Doing::kComputes, 9}, ms_in(25)), ms_in(20));
  EXPECT_EQ(phase.worker(), std::nullopt) << "once";
}

TEST(FirstPhaseTest, MayBeShorterThanAPause) {
  FirstPhase phase;
  phase.begin(1, 0, ms_in(0));
  EXPECT_EQ(phase.look({Doing::kWaits, 3}, ms_in(5)), ms_in(5));
}

TEST(FirstPhaseTest, IsForgottenWithALoss) {
  FirstPhase phase;
  phase.begin(1, 0, ms_in(0));
  EXPECT_EQ(phase.look({Doing::kElse, 1}, ms_in(5)), std::nullopt);
  phase.forget();
  EXPECT_EQ(phase.look({Doing::kComputes, 2}, ms_in(10)), std::nullopt);
  EXPECT_EQ(phase.end_well(), std::nullopt);
}

TEST(FirstPhaseTest, CountsAtTheEndOfAJob) {
  FirstPhase phase;
  phase.begin(1, 0, ms_in(0));
  EXPECT_EQ(phase.look({Doing::kElse, 1}, ms_in(5)), std::nullopt);
  EXPECT_EQ(phase.end_well(), ms_in(5));
  phase.begin(1, 1, ms_in(0));
  EXPECT_EQ(phase.end_well(), std::nullopt) << "there was none";
}

TEST(FirstPhaseTest, IsLookedForMoreSeldomWithTime) {
  FirstPhase phase;
  phase.begin(1, 0, ms_in(0));
  EXPECT_EQ(phase.pause(ms_in(10)), milliseconds(5));
  EXPECT_EQ(phase.pause(ms_in(20'000)), milliseconds(1000));
}

}  // namespace
}  // namespace lockstep::control
