// `lockstep bench` as a person runs it: what it prints, and that nothing is left of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
  EXPECT_THAT(systems_of(results), ::testing::ElementsAre("lockstep-shm", "limit", "limit-dirty",
                                                          "lockstep-shm", "limit", "limit-dirty"));
  for (const auto& one : results) {
    EXPECT_EQ(one["workers"], 2);
    EXPECT_GT(one["p50_us"], 0);
    EXPECT_GT(one["algbw_GBps"], 0);
  }
  EXPECT_EQ(results[3]["bytes"], 65536);
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
              ::testing::ElementsAre("in-place-tree", "in-place-ranks", "limit", "limit-dirty",
                                     "in-place-tree", "in-place-ranks", "limit", "limit-dirty",
                                     "in-place-tree", "in-place-ranks", "limit", "limit-dirty"));
  for (const auto& one : results) EXPECT_EQ(one["samples"], 2);
}

#ifdef LOCKSTEP_HAS_TORCH
TEST_F(Bench, StepGivesTimesMemoryAndEfficiency) {
  const auto results =
      results_of({"step", "--model", "cnn", "--batch", "2", "--rows", "2x1", "--engines", "shm",
                  "--peers", "plain,plain-barrier", "--iterations", "2", "--turns", "2"});
  EXPECT_THAT(systems_of(results),
              ::testing::ElementsAre("plain", "plain-barrier", "lockstep-shm", "lockstep-shm-fused",
                                     "lockstep-shm-step"));
  for (const auto& one : results) {
    EXPECT_EQ(one["model"], "cnn");
    EXPECT_EQ(one["steps"], 2 * 2 * 5);  // a turn has at least 5
    EXPECT_GT(one["step_ms_p50"], 0);
    EXPECT_GT(one["efficiency"], 0);
    EXPECT_GT(one["of_plain_barrier"], 0);
    EXPECT_GT(one["pss_mb"], one["state_mb"]);
  }
}

TEST_F(Bench, StepsOfManyShardsAreComparedWithPlainAccumulations) {
  const auto results =
      results_of({"step", "--model", "cnn", "--batch", "2", "--rows", "2x1", "--shards", "5",
                  "--engines", "shm", "--iterations", "2", "--turns", "1"});
  EXPECT_THAT(systems_of(results),
              ::testing::ElementsAre("plain-accumulate", "plain-accumulate-flat",
                                     "lockstep-shm-fused", "lockstep-shm-step"));
  for (const auto& one : results) {
    EXPECT_EQ(one["shards"], 5);
    EXPECT_EQ(one["steps"], 4);
    EXPECT_GT(one["efficiency"], 0);
  }
}

TEST_F(Bench, FaultsGivesTheTimesAfterAKillAndWhatRestartsCost) {
  const auto results = results_of({"faults", "--rows", "kills,cost", "--kills", "1", "--model",
                                   "cnn", "--batch", "2", "--iterations", "2", "--turns", "1"});
  std::vector<std::string> names;
  for (const auto& one : results) {
    names.push_back(one["name"]);
    EXPECT_GT(one["samples"], 0);
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"noticed_ms", "committed_ms", "rejoined_ms",
                                              "sgd-momentum", "sgd-momentum --max-restarts 5",
                                              "adamw", "adamw --max-restarts 5"}));
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

bool eventually(const std::function<bool()>& happened) {
  for (const Deadline deadline = seconds(30); !deadline.expired();) {
    if (happened()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return happened();
}

// The command in a folder of its own, beside programs that only look like those that it starts.
class BenchOfFakes : public Bench {
 protected:
  BenchOfFakes() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "lockstep-fakes-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), pattern);
    folder_ = pattern;
    std::filesystem::copy_file(LOCKSTEP_BINARY, folder_ / "lockstep");
  }
  ~BenchOfFakes() override {
    for (const pid_t left : processes_with(marker_)) ::kill(left, SIGKILL);
    std::filesystem::remove_all(folder_);
  }

  // In the script $FOLDER is a folder that only this test knows.
  void fake(const std::string& name, const std::string& script) const {
    const auto path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\nFOLDER=" << quoted(folder_.string()) << "\n" << script;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  Command start_here(std::vector<std::string> words) const {
    words.insert(words.begin(), {(folder_ / "lockstep").string(), "bench"});
    return Command(words, {marker_, "PATH=" + folder_.string() + ":" + std::getenv("PATH")});
  }

  bool appears(const std::string& name) const {
    return eventually([&] { return std::filesystem::exists(folder_ / name); });
  }

  // Three rounds in which `failing` does not survive the second: it is in nothing that is written.
  void expect_left_out(std::vector<std::string> words, const std::string& failing,
                       const std::string& staying) const {
    const std::string plot = (folder_ / "plot.svg").string();
    words.insert(words.end(), {"--rounds", "3", "--json", "--plot", plot});
    Command command = start_here(std::move(words));
    ASSERT_TRUE(command.finish(seconds(50)));
    EXPECT_THAT(command.err(), HasSubstr(failing + " ended with 3 and is left out"));
    const auto systems = systems_of(nlohmann::json::parse(command.out()));
    EXPECT_THAT(systems, ::testing::Contains(staying));
    EXPECT_THAT(systems, Not(::testing::Contains(failing)));
    std::ifstream file(plot);
    const std::string picture{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(picture, HasSubstr(">" + staying + "<"));
    EXPECT_THAT(picture, Not(HasSubstr(">" + failing + "<")));
    EXPECT_THAT(processes_with(marker_), IsEmpty());
  }

  std::filesystem::path folder_;
};

TEST_F(BenchOfFakes, AnAllreduceThatFailsInTheSecondRoundIsInNoReport) {
  fake("lockstep-bench-openmpi", "");
  fake("mpirun.openmpi",
       R"(mkdir $FOLDER/ran || exit 3; echo '{"bytes":1024,"block":1,"us":[4]}')");
  expect_left_out({"allreduce", "-n", "2", "--sizes", "1KiB", "--engines", "none", "--peers",
                   "openmpi", "--iterations", "2"},
                  "openmpi", "limit");
}

// One worker; $2 is the system.
constexpr char kFailsTheSecondTime[] =
    R"([ "$2" != plain ] || mkdir $FOLDER/ran || exit 3
       echo '{"rank":0,"pss_mb":1,"state_mb":1,"step_ms":[4]}')";

TEST_F(BenchOfFakes, AStepThatFailsInTheSecondRoundIsInNoReport) {
  fake("lockstep-train", kFailsTheSecondTime);
  expect_left_out({"step", "-n", "1", "--engines", "shm", "--peers", "plain,plain-flat"}, "plain",
                  "plain-flat");
}

TEST_F(BenchOfFakes, RowsTakeTurnsAndEachHasItsWorkersAndThreads) {
  fake("lockstep-train", R"(echo "$WORLD_SIZE x $OMP_NUM_THREADS" >> $FOLDER/$2-$RANK
       [ "$2-$WORLD_SIZE" != plain-2 ] || [ $RANK = 1 ] || exit 3
       echo "{\"rank\":$RANK,\"pss_mb\":1,\"state_mb\":1,\"step_ms\":[$WORLD_SIZE]}")");
  Command command = start_here({"step", "--rows", "1x3,2x1", "--engines", "none", "--peers",
                                "plain,plain-flat", "--rounds", "2", "--turns", "1", "--json"});
  ASSERT_TRUE(command.finish(seconds(50)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), HasSubstr("2x1 plain ended with 3 and is left out"));
  const auto results = nlohmann::json::parse(command.out());
  EXPECT_THAT(systems_of(results), ::testing::ElementsAre("plain", "plain-flat", "plain-flat"));
  EXPECT_EQ(results[0]["threads"], 3);
  EXPECT_EQ(results[2]["workers"], 2);
  EXPECT_EQ(results[2]["step_ms_p50"], 2);
  std::ifstream file(folder_ / "plain-flat-0");
  const std::string turns{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(turns, "1 x 3\n2 x 1\n1 x 3\n2 x 1\n");
}

TEST_F(BenchOfFakes, AStepOnAGpuThatFailsInTheSecondRoundIsInNoReport) {
  fake("lockstep-train", kFailsTheSecondTime);
  expect_left_out({"step", "--device", "cuda", "--systems", "plain,trainer"}, "plain", "trainer");
}

// Takes in the orphans, as the keeper does where `bench` is started by `lockstep run`: an orphan whose new parent is of
// its session is not continued by the kernel.
class TakesOrphans {
 public:
  TakesOrphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~TakesOrphans() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  TakesOrphans(const TakesOrphans&) = delete;
  TakesOrphans& operator=(const TakesOrphans&) = delete;
};

TEST_F(BenchOfFakes, WhenItIsKilledNothingIsLeftOfARunEvenWhereTheLauncherIsStopped) {
  const TakesOrphans orphans;
  fake("lockstep-train", "touch $FOLDER/started; sleep 1000");
  Command command = start_here({"step", "-n", "2", "--engines", "none", "--peers", "plain"});
  ASSERT_TRUE(appears("started"));
  const auto launchers = children_of(command.pid());
  ASSERT_EQ(launchers.size(), 1U);
  ::kill(launchers[0], SIGSTOP);
  command.signal(SIGKILL);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_TRUE(eventually([&] { return processes_with(marker_).empty(); }));
}

TEST_F(BenchOfFakes, WhenItIsKilledALauncherOfMpiIsToldToEnd) {
  fake("lockstep-bench-openmpi", "");
  // The waiting process itself says that it has started. A shell that has just forked may lose a
  // signal until it has become the other program.
  fake("mpirun.openmpi",
       R"(trap 'kill $!; touch $FOLDER/told; exit' TERM
          sh -c "touch '$FOLDER/started'; exec sleep 1000" & wait)");
  Command command = start_here({"allreduce", "-n", "2", "--engines", "none", "--peers", "openmpi"});
  ASSERT_TRUE(appears("started"));
  command.signal(SIGKILL);
  EXPECT_TRUE(appears("told"));
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_TRUE(eventually([&] { return processes_with(marker_).empty(); }));
}

}  // namespace
}  // namespace lockstep::testing
