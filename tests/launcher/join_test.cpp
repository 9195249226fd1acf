// Launcher, rendezvous and join() together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

class JoinUnderLauncherTest : public ::testing::TestWithParam<int> {};

// The time that the slowest worker took to join, in milliseconds.
int slowest_join(const std::string& output) {
  int slowest = 0;
  for (const auto& line : lines_of(output)) {
    const auto at = line.find("took ");
    if (at != std::string::npos) slowest = std::max(slowest, std::atoi(line.c_str() + at + 5));
  }
  return slowest;
}

TEST_P(JoinUnderLauncherTest, AllWorkersJoinInTimeAndTalk) {
  const int workers = GetParam();
  const int limit = kSlowBuild ? 30'000 : 1000;
  int best = std::numeric_limits<int>::max();
  // The time is that of a host which does nothing else; a busy one has three tries.
  for (int attempt = 0; attempt < 3 && best >= limit; ++attempt) {
    Command command({LOCKSTEP_BINARY, "run", "-n", std::to_string(workers), "--timeout", "50", "--",
                     JOIN_ACTOR_BINARY});
    ASSERT_TRUE(command.finish(seconds(55)));
    if (command.exit_code() == 77) GTEST_SKIP() << "no engine between processes in this build";
    ASSERT_EQ(command.exit_code(), 0) << command.err();
    const int sum = workers * (workers + 1) / 2;
    EXPECT_EQ(
        count(command.out(), " of " + std::to_string(workers) + " sum " + std::to_string(sum)),
        workers)
        << command.out();
    EXPECT_EQ(count(command.out(), "joined lockstep rank"), workers);
    best = std::min(best, slowest_join(command.out()));
  }
  std::printf("%d workers: the slowest joined in %d ms\n", workers, best);
  EXPECT_LT(best, limit);
}

INSTANTIATE_TEST_SUITE_P(Workers, JoinUnderLauncherTest, ::testing::Values(1, 2, 4, 8, 16));

// More of them than strangers may knock at once: at the socket of a worker's memory (shm), or while
// pairs prove the secret (tcp).
TEST(CrowdTest, WorkersThatComeAtOnceAreNoStrangers) {
  if (kSlowBuild) GTEST_SKIP() << "so many workers take minutes here";
  for (const char* const engine : {"shm", "tcp"}) {
    SCOPED_TRACE(engine);
    Command command({LOCKSTEP_BINARY, "run", "-n", "128", "--engine", engine, "--timeout", "50",
                     "--", JOIN_ACTOR_BINARY});
    ASSERT_TRUE(command.finish(seconds(80)));
    EXPECT_EQ(command.exit_code(), 0);
    EXPECT_EQ(command.err(), "");
  }
}

TEST(GpuUnderLauncherTest, WorkersThatCannotHaveAGpuEndAtOnce) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "24", "--device", "cuda", "--timeout", "100", "--",
                   JOIN_ACTOR_BINARY});
  ASSERT_TRUE(command.finish(seconds(60)));
  // Too few of them is BadInput, none at all is Unavailable.
  EXPECT_THAT(command.exit_code(), ::testing::AnyOf(1, 77)) << command.err();
  EXPECT_THAT(command.err(),
              ::testing::AnyOf(::testing::HasSubstr("24 workers and "),
                               ::testing::HasSubstr("there is no GPU here that CUDA can use"),
                               ::testing::HasSubstr("there is no driver for GPUs here"),
                               ::testing::HasSubstr("the GPU's driver is for CUDA"),
                               ::testing::HasSubstr("this build of Lockstep has no CUDA")));
  EXPECT_EQ(count(command.out(), "joined"), 0);
}

TEST(IncompleteWorldTest, WorkerThatNeverJoinsIsATimeoutNotAHang) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "2", "--timeout", "1", "--", "/bin/sh", "-c",
                   "[ $RANK = 0 ] && exec " + quoted(ACTOR_BINARY) + " wait; exec " +
                       quoted(JOIN_ACTOR_BINARY)});
  ASSERT_TRUE(command.finish(seconds(60)));
  if (command.exit_code() == 77) GTEST_SKIP() << "no engine between processes in this build";
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), ::testing::HasSubstr("rank 0"));
}

}  // namespace
}  // namespace lockstep::testing
