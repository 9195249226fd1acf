// How a job ends: by itself, by a failure, by a signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "control/launch/process_table.h"
#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Clock = std::chrono::steady_clock;

// Sanitizers make every process slower to end.
constexpr std::chrono::milliseconds kTwoSeconds{kSlowBuild ? 8000 : 2000};

TEST(EndsTest, FirstFailureGivesTheExitCodeAndIsNamedWithItsLastLines) {
  Command command = run_actor(4, {"exit", "2", "7"});
  const auto start = Clock::now();
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_LT(Clock::now() - start, kTwoSeconds);
  EXPECT_EQ(command.exit_code(), 7);
  EXPECT_THAT(command.err(), HasSubstr("lockstep: rank 2 (pid "));
  EXPECT_THAT(command.err(), HasSubstr("exited with code 7"));
  EXPECT_THAT(lines_of(command.err()), Contains("  | about to fail"));
  EXPECT_THAT(lines_of(command.err()), Contains("  | the reason"));
}

TEST(EndsTest, SignalThatKilledAWorkerIsNamed) {
  Command command = run_actor(3, {"raise", "1", std::to_string(SIGABRT)});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 128 + SIGABRT);
  EXPECT_THAT(command.err(), HasSubstr("rank 1"));
  EXPECT_THAT(command.err(), HasSubstr("SIGABRT"));
}

// The shortest of a few tries: on a busy machine any of them may wait for a core.
TEST(EndsTest, WorkersThatIgnoreSigtermAreGoneWithinTwoSecondsOfAFailure) {
  Clock::duration shortest = Clock::duration::max();
  for (int tries = 0; tries < 4 && shortest >= kTwoSeconds; ++tries) {
    const std::string marker = make_marker();
    Command command = run_actor(3, {"fail", "0", "5"}, {}, {marker});
    ASSERT_TRUE(command.wait_for("ready", 3, seconds(20)));
    command.signal(SIGUSR1);
    const auto start = Clock::now();
    ASSERT_TRUE(command.finish(seconds(20)));
    shortest = std::min<Clock::duration>(shortest, Clock::now() - start);
    EXPECT_EQ(command.exit_code(), 5);
    EXPECT_THAT(processes_with(marker), IsEmpty());
  }
  EXPECT_LT(shortest, kTwoSeconds);
}

TEST(EndsTest, WorkerThatEndsWellDoesNotEndTheOthers) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "2", "--", "/bin/sh", "-c",
                   "[ $RANK = 0 ] && exit 0; exec " + quoted(ACTOR_BINARY) + " catch"});
  ASSERT_TRUE(command.wait_for("ready", 1, seconds(20)));
  ASSERT_TRUE(wait_for_children(children_of(command.pid()).at(0), 1, seconds(20)));
  command.signal(SIGUSR1);
  ASSERT_TRUE(command.wait_for("caught " + std::to_string(SIGUSR1), 1, seconds(20)));
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 143);
}

class ForwardedSignalTest : public ::testing::TestWithParam<int> {};

TEST_P(ForwardedSignalTest, ReachesEveryWorker) {
  Command command = run_actor(3, {"catch"});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(20)));
  command.signal(GetParam());
  EXPECT_TRUE(command.wait_for("caught " + std::to_string(GetParam()), 3, seconds(20)))
      << command.out();
}

INSTANTIATE_TEST_SUITE_P(Signals, ForwardedSignalTest,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2,
                                           SIGCONT));

TEST(EndsTest, SignalGivesItsExitCodeWithoutAFailureReport) {
  Command command = run_actor(3, {"catch"});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(20)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 130);
  EXPECT_THAT(command.err(), HasSubstr("passed SIGINT on"));
  EXPECT_THAT(command.err(), Not(HasSubstr("exited with code")));
}

TEST(EndsTest, QuietLeavesTheNotesOut) {
  Command command = run_actor(2, {"catch"}, {"--quiet"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.err(), "");
}

TEST(EndsTest, WorkersThatDoNotEndAreKilledAfterTheGracePeriod) {
  Command command = run_actor(2, {"stubborn"}, {"--grace", "0.3"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  const auto start = Clock::now();
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(300));
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(300) + kTwoSeconds);
  EXPECT_EQ(command.exit_code(), 143);
  EXPECT_THAT(command.err(), HasSubstr("killed 2 workers"));
}

TEST(EndsTest, SecondCtrlCKillsAtOnce) {
  Command command = run_actor(2, {"stubborn"}, {"--grace", "60"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.wait_for("passed SIGINT on", 1, seconds(20)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(10)));
  EXPECT_EQ(command.exit_code(), 130);
}

TEST(EndsTest, IgnoredHangupStaysIgnored) {
  Command command({"/usr/bin/nohup", LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/sh", "-c",
                   "echo ready; read line; kill -HUP $$; exit 4"});
  ASSERT_TRUE(command.wait_for("ready", 1, seconds(20)));
  command.signal(SIGHUP);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 4);
}

// The state letter of a process, as ps shows it.
char state_of(pid_t pid) {
  Command status(
      {"/bin/sh", "-c", "sed 's/.*) //; s/ .*//' /proc/" + std::to_string(pid) + "/stat"});
  status.finish(seconds(10));
  return status.out().empty() ? '?' : status.out().front();
}

bool wait_for_state(pid_t pid, char state, Deadline deadline) {
  while (state_of(pid) != state) {
    if (deadline.expired()) return false;
  }
  return true;
}

TEST(EndsTest, StopAndContinueReachTheWorkers) {
  Command command = run_actor(1, {"wait"});
  ASSERT_TRUE(command.wait_for("ready", 1, seconds(20)));
  const pid_t keeper = children_of(command.pid()).at(0);
  const pid_t worker = children_of(keeper).at(0);
  command.signal(SIGTSTP);
  EXPECT_TRUE(wait_for_state(worker, 'T', seconds(10)));
  EXPECT_TRUE(wait_for_state(command.pid(), 'T', seconds(10)));
  command.signal(SIGCONT);
  EXPECT_TRUE(wait_for_state(worker, 'S', seconds(10)));
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 143);
}

TEST(EndsTest, StoppedWorkersEndOnSigterm) {
  Command command = run_actor(1, {"wait"});
  ASSERT_TRUE(command.wait_for("ready", 1, seconds(20)));
  const pid_t worker = children_of(children_of(command.pid()).at(0)).at(0);
  ::kill(worker, SIGSTOP);
  ASSERT_TRUE(wait_for_state(worker, 'T', seconds(10)));
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(5)));
  EXPECT_EQ(command.exit_code(), 143);
}

TEST(EndsTest, StoppedKeeperDoesNotKeepTheJobFromEnding) {
  const std::string marker = make_marker();
  Command command = run_actor(2, {"family"}, {"--grace", "0.3"}, {marker});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  ::kill(children_of(command.pid()).at(0), SIGSTOP);
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 143);
  EXPECT_THAT(processes_with(marker), IsEmpty());
}

TEST(EndsTest, ProcessesThatWorkersLeaveBehindAreEndedAndCounted) {
  const std::string marker = make_marker();
  Command command = run_actor(3, {"leave"}, {}, {marker});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_THAT(command.err(), HasSubstr("ended 3 processes"));
  EXPECT_THAT(processes_with(marker), IsEmpty());
}

}  // namespace
}  // namespace lockstep::testing
