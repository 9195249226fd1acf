#include "control/launch/hangs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

class HangsTest : public testing::Test {
 protected:
  // Looks every second for so long, and returns what it found last.
  Hangs::Found look_for(seconds time, const std::map<int, Said>& said) {
    Hangs::Found found;
    for (int second = 0; second < time.count(); ++second)
      found = hangs_.look(said, now_ += seconds(1));
    return found;
  }
  Hangs hangs_{std::nullopt};
  Hangs::Clock::time_point now_{std::chrono::hours(1)};
};

const Said kComputing{Doing::kComputes, 7};
const Said kWaiting{Doing::kWaits, 7};

TEST_F(HangsTest, AWorkerThatOthersWaitForIsHungAfterHalfAMinute) {
  const std::map<int, Said> said = {{0, kWaiting}, {1, kComputing}, {2, kWaiting}};
  EXPECT_THAT(look_for(seconds(30), said).hung, IsEmpty());
  const auto found = look_for(seconds(1), said);
  EXPECT_THAT(found.hung, ElementsAre(1));
  EXPECT_THAT(found.waiters, ElementsAre(0, 2));
  EXPECT_EQ(found.limit, seconds(30));
}

TEST_F(HangsTest, WhileNobodyWaitsNobodyIsHung) {
  EXPECT_THAT(look_for(seconds(1000), {{0, kComputing}, {1, kComputing}}).hung, IsEmpty());
}

TEST_F(HangsTest, TheOthersMustHaveWaitedForTheLimitToo) {
  look_for(seconds(100), {{0, kComputing}, {1, kComputing}});
  EXPECT_THAT(look_for(seconds(30), {{0, kWaiting}, {1, kComputing}}).hung, IsEmpty());
  EXPECT_THAT(look_for(seconds(1), {{0, kWaiting}, {1, kComputing}}).hung, ElementsAre(1));
}

TEST_F(HangsTest, EveryPhaseIsProgress) {
  for (std::uint64_t phase = 2; phase < 200; ++phase) {
    const Said computing{Doing::kComputes, phase};
    const Said waiting{Doing::kWaits, phase};
    EXPECT_THAT(look_for(seconds(2), {{0, waiting}, {1, computing}}).hung, IsEmpty());
  }
}

TEST_F(HangsTest, ACheckpointTheFirstPhaseAndTheProgramsOwnWorkHaveNoLimit) {
  EXPECT_THAT(look_for(seconds(1000), {{0, kWaiting}, {1, {Doing::kElse, 7}}}).hung, IsEmpty());
  EXPECT_THAT(look_for(seconds(1000), {{0, kWaiting}, {1, {Doing::kComputes, 1}}}).hung, IsEmpty());
}

TEST_F(HangsTest, SlowPhasesHaveLongerLimits) {
  for (std::uint64_t phase = 2; phase < 12; ++phase)
    look_for(seconds(8), {{0, {Doing::kComputes, phase}}, {1, {Doing::kComputes, phase}}});
  const std::map<int, Said> said = {{0, {Doing::kWaits, 12}}, {1, {Doing::kComputes, 12}}};
  EXPECT_THAT(look_for(seconds(80), said).hung, IsEmpty());
  EXPECT_THAT(look_for(seconds(2), said).hung, ElementsAre(1));
}

TEST_F(HangsTest, TheUsersLimitCounts) {
  hangs_ = Hangs(milliseconds(1500));
  const std::map<int, Said> said = {{0, kWaiting}, {1, kComputing}};
  EXPECT_THAT(look_for(seconds(2), said).hung, IsEmpty());
  EXPECT_THAT(look_for(seconds(1), said).hung, ElementsAre(1));
}

TEST_F(HangsTest, TimeInWhichNobodyLookedDoesNotCount) {
  const std::map<int, Said> said = {{0, kWaiting}, {1, kComputing}};
  look_for(seconds(29), said);
  now_ += std::chrono::hours(8);  // the host was asleep
  EXPECT_THAT(look_for(seconds(30), said).hung, IsEmpty());
  EXPECT_THAT(look_for(seconds(1), said).hung, ElementsAre(1));
}

TEST_F(HangsTest, AReplacementBeginsAfresh) {
  const std::map<int, Said> both = {{0, kWaiting}, {1, kComputing}};
  look_for(seconds(20), both);
  look_for(seconds(1), {{0, {Doing::kWaits, 8}}});  // place 1 is no member
  EXPECT_THAT(look_for(seconds(20), {{0, {Doing::kWaits, 9}}, {1, kComputing}}).hung, IsEmpty());
}

}  // namespace
}  // namespace lockstep::control
