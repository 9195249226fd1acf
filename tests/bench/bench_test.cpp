// `lockstep bench` as a person runs it: what it prints, and that nothing is left of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Bench : public ::testing::Test {
 protected:
  Command start(std::vector<std::string> words) const {
    words.insert(words.begin(), {LOCKSTEP_BINARY, "bench"});
    return Command(words, {marker_});
  }

  nlohmann::json results_of(std::vector<std::string> words) const {
    words.insert(words.end(), {"--json", "--rounds", "1"});
    Command command = start(std::move(words));
    EXPECT_TRUE(command.finish(seconds(50)));
    EXPECT_EQ(command.exit_code(), 0) << command.err();
    EXPECT_THAT(processes_with(marker_), IsEmpty());
    return nlohmann::json::parse(command.out());
  }

  std::string marker_ = make_marker();
};

std::vector<std::string> systems_of(const nlohmann::json& results) {
  std::vector<std::string> names;
  for (const auto& one : results) names.push_back(one["system"]);
  return names;
}

TEST_F(Bench, AllreduceGivesEverySizeOfEverySystemWithTheLimit) {
  const auto results = results_of({"allreduce", "--workers", "2", "--sizes", "1KiB,64KiB",
                                   "--engines", "shm", "--peers", "none", "--seconds", "0.01"});
  EXPECT_THAT(systems_of(results),
              ::testing::ElementsAre("lockstep-shm", "limit", "lockstep-shm", "limit"));
  for (const auto& one : results) {
    EXPECT_EQ(one["workers"], 2);
    EXPECT_GT(one["p50_us"], 0);
    EXPECT_GT(one["algbw_GBps"], 0);
  }
  EXPECT_EQ(results[2]["bytes"], 65536);
}

TEST_F(Bench, ThreeWorkersAndAnOddSizeAreExactToo) {
  const auto results = results_of(
      {"allreduce", "-n", "3", "--sizes", "4,1028", "--peers", "none", "--iterations", "2"});
  for (const auto& one : results) EXPECT_EQ(one["samples"], 2);
}

TEST_F(Bench, BothOrdersGiveTheRightSums) {
  const auto results = results_of({"allreduce", "-n", "4", "--sizes", "4,1028,64KiB", "--order",
                                   "--engines", "none", "--peers", "none", "--iterations", "2"});
  EXPECT_THAT(systems_of(results),
              ::testing::ElementsAre("in-place-tree", "in-place-ranks", "limit", "in-place-tree",
                                     "in-place-ranks", "limit", "in-place-tree", "in-place-ranks",
                                     "limit"));
  for (const auto& one : results) EXPECT_EQ(one["samples"], 2);
}

#ifdef LOCKSTEP_HAS_TORCH
TEST_F(Bench, StepGivesTimesMemoryAndEfficiency) {
  const auto results = results_of({"step", "--model", "cnn", "--batch", "2", "--workers", "2",
                                   "--engines", "shm", "--peers", "plain", "--iterations", "2"});
  EXPECT_THAT(systems_of(results),
              ::testing::ElementsAre("plain", "lockstep-shm", "lockstep-shm-fused"));
  for (const auto& one : results) {
    EXPECT_EQ(one["model"], "cnn");
    EXPECT_EQ(one["steps"], 4);
    EXPECT_GT(one["step_ms_p50"], 0);
    EXPECT_GT(one["efficiency"], 0);
    EXPECT_GT(one["pss_mb"], one["state_mb"]);
  }
}

TEST_F(Bench, StepsOfManyShardsAreComparedWithPlainAccumulations) {
  const auto results = results_of({"step", "--model", "cnn", "--batch", "2", "--workers", "2",
                                   "--shards", "5", "--engines", "shm", "--iterations", "2"});
  EXPECT_THAT(
      systems_of(results),
      ::testing::ElementsAre("plain-accumulate", "plain-accumulate-flat", "lockstep-shm-fused"));
  for (const auto& one : results) {
    EXPECT_EQ(one["shards"], 5);
    EXPECT_EQ(one["steps"], 4);
    EXPECT_GT(one["efficiency"], 0);
  }
}

TEST_F(Bench, StepOnAGpuThatIsNotThereIsRefusedInOneLine) {
  Command command({LOCKSTEP_BINARY, "bench", "step", "--device", "cuda", "--systems", "plain"},
                  {marker_, "CUDA_VISIBLE_DEVICES="});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_NE(command.exit_code(), 0);
  EXPECT_THAT(command.err(), HasSubstr("bench step: this LibTorch "));
  EXPECT_EQ(lines_of(command.err()).size(), 1U);
}
#endif

TEST_F(Bench, CtrlCLeavesNobody) {
  Command command = start({"allreduce", "-n", "2", "--engines", "shm", "--peers", "none"});
  ASSERT_TRUE(command.wait_for("round 1", 1, seconds(30)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 130);
  EXPECT_THAT(command.out(), IsEmpty());
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(Bench, WhatIsUnknownIsRefusedInOneLine) {
  Command command = start({"allreduce", "--peers", "gloo,nccl"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 2);
  EXPECT_THAT(command.err(), HasSubstr("choose from gloo, openmpi, mpich"));
  EXPECT_EQ(lines_of(command.err()).size(), 1U);
}

}  // namespace
}  // namespace lockstep::testing
