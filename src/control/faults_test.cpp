#include "control/faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/faults.h>

#include <chrono>
#include <new>
#include <set>

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(FaultsTest, AListIsRead) {
  EXPECT_TRUE(parse_faults("").empty());
  EXPECT_THAT(parse_faults("kill@5:1:update,stop@7:0:forward").faults,
              ElementsAre(Fault{FaultKind::kKill, 5, 1, "update", ""},
                          Fault{FaultKind::kStop, 7, 0, "forward", ""}));
  EXPECT_THAT(parse_faults("slow@1:0:read:200ms,flip@2:1:reduce:state").faults,
              ElementsAre(Fault{FaultKind::kSlow, 1, 0, "read", "200ms"},
                          Fault{FaultKind::kFlip, 2, 1, "reduce", "state"}));
  EXPECT_EQ(time_of(parse_faults("slow@1:0:read:2s").faults[0]), std::chrono::seconds(2));
}

TEST(FaultsTest, RatesAreRead) {
  const auto schedule =
      parse_faults("kill=1/min,slow=200ms:0.5/min,oom=2/h,crash=0.1/step,disk@1:0:checkpoint");
  EXPECT_THAT(schedule.rates, ElementsAre(FaultRate{FaultKind::kKill, "", 60, false},
                                          FaultRate{FaultKind::kSlow, "200ms", 120, false},
                                          FaultRate{FaultKind::kMemory, "", 1800, false},
                                          FaultRate{FaultKind::kCrash, "", 10, true}));
  EXPECT_EQ(schedule.faults.size(), 1U);
}

TEST(FaultsTest, WhatIsWrittenIsReadAgain) {
  for (const char* text : {"kill@5:1:torn", "slow@1:0:read:200ms", "flip@2:1:reduce:state",
                           "flip@2:1:reduce", "oom@3:2:forward", "disk@8:0:checkpoint"})
    EXPECT_EQ(to_string(parse_faults(text).faults.at(0)), text);
}

TEST(FaultsTest, OnlySlowStrikesEveryTime) {
  const Fault fault = parse_faults("slow@every:3:forward:60ms").faults.at(0);
  EXPECT_EQ(fault.step, Fault::kEveryStep);
  EXPECT_EQ(to_string(fault), "slow@every:3:forward:60ms");
  EXPECT_THROW(parse_faults("kill@every:3:forward"), BadInput);
  EXPECT_THROW(parse_faults("slow@-1:3:forward:60ms"), BadInput);
}

TEST(FaultsTest, WhatIsNoFaultIsNamedInOneLineWithAllWords) {
  for (const char* text : {"kill",
                           "kill@",
                           "kill@5",
                           "kill@5:1",
                           "kill@5:1:",
                           "kill@5:1:lunch",
                           "tickle@5:1:update",
                           "kill@-1:1:update",
                           "kill@5:x:update",
                           "kill@5:99999999:update",
                           "kill@5:1:update,,",
                           "kill@5:1:update:",
                           "kill@5:1:update:now",
                           "slow@5:1:update",
                           "slow@5:1:update:0ms",
                           "slow@5:1:torn:1ms",
                           "flip@5:1:reduce:soul",
                           "disk@5:1:forward",
                           "oom@5:1:update",
                           "kill=",
                           "kill=1",
                           "kill=1/",
                           "kill=1/week",
                           "kill=0/min",
                           "kill=-1/min",
                           "kill=nan/min",
                           "kill=1e9/s",
                           "kill=1e-300/s",
                           "kill=200ms:1/min",
                           "slow=1/min",
                           "slow=:1/min",
                           "tickle=1/min",
                           "=",
                           "@",
                           ","}) {
    try {
      parse_faults(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("is no fault")) << text;
      EXPECT_THAT(error.what(), HasSubstr("evaluation, regroup, join")) << text;
      EXPECT_THAT(error.what(), Not(HasSubstr("\n"))) << text;
    }
  }
}

TEST(FaultsTest, ASeedGivesOneSequenceInWhichEveryWorkerAndEveryPointComes) {
  const FaultRate rate = parse_faults("kill=1/step").rates[0];
  const auto first = [&](std::uint64_t seed) {
    FaultStream stream(rate, seed, 4);
    std::vector<std::string> all;
    for (int i = 0; i < 1000; ++i, stream.pop())
      all.push_back(to_string(stream.next()) + " " + std::to_string(stream.at()));
    return all;
  };
  EXPECT_EQ(first(7), first(7));
  EXPECT_NE(first(7), first(8));
  FaultStream stream(rate, 7, 4);
  std::set<std::string> points;
  std::set<int> workers;
  for (int i = 0; i < 1000; ++i, stream.pop()) {
    points.insert(stream.next().where);
    workers.insert(stream.next().worker);
  }
  EXPECT_NEAR(stream.at(), 1000, 100) << "the mean gap is one step";
  EXPECT_EQ(workers, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(points.size(), points_of(FaultKind::kKill).size() - 1) << "all but join";
  int struck = 0;
  for (std::uint64_t generation = 1; generation <= 1000; ++generation)
    struck += joins_badly(rate, 7, 1, generation) ? 1 : 0;
  EXPECT_NEAR(struck, 1000 / 16, 30);
}

// This process is worker 0 of 1.
TEST(FaultsTest, AProgramAddsItsOwn) {
  Faults& faults = Faults::here();
  EXPECT_TRUE(faults.none());
  EXPECT_THROW(inject_faults("kill@5:0:lunch"), BadInput);
  EXPECT_TRUE(faults.none());
  inject_faults("oom@3:0:forward,slow@3:0:backward:1ms,kill@0:1:forward");
  EXPECT_FALSE(faults.none());
  faults.strike("forward", 0);
  faults.strike("backward", 2);
  EXPECT_THROW(faults.strike("forward", 3), std::bad_alloc);
  faults.strike("forward", 3);  // once only
  EXPECT_TRUE(faults.due("backward", 3));
  faults.strike("backward", 3);
  EXPECT_TRUE(faults.none()) << "the third is another worker's";
}

TEST(FaultsTest, ALastingOneStrikesEachTime) {
  inject_faults("slow@every:0:small:20ms,slow@every:1:small:3600s");
  const auto began = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < 3; ++step) Faults::here().strike("small", step);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(60));
  Faults::here().strike("intent", 0);
  EXPECT_FALSE(Faults::here().due("small", 0)) << "it is nothing to wait for";
}

// Last: a rate stays.
TEST(FaultsTest, OfARateStrikeWhenTheirStepHasCome) {
  inject_faults("oom=0.5/step", 7);
  Faults& faults = Faults::here();
  int struck = 0;
  for (std::int64_t step = 0; step < 100; ++step) {
    for (const std::string_view where : points_of(FaultKind::kMemory)) {
      try {
        faults.strike(where, step);
      } catch (const std::bad_alloc&) {
        ++struck;
      }
    }
  }
  EXPECT_NEAR(struck, 50, 25);
}

}  // namespace
}  // namespace lockstep::control
