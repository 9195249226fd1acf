#include "bench/process.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <ios>

namespace lockstep::bench {
namespace {

// A process that runs a program for long; it waits to be traced first. -1: it may not be.
pid_t start_runner() {
  const pid_t runner = ::fork();
  if (runner == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
    ::raise(SIGSTOP);
    ProgramRunner().run({{"/bin/sleep", "1000"}}, Deadline::after(std::chrono::minutes(1)));
    ::_exit(0);
  }
  int status = 0;
  return ::waitpid(runner, &status, 0) == runner && WIFSTOPPED(status) ? runner : -1;
}

// Lets the runner go on until it has forked; its child has not run an instruction yet. -1: it has not forked.
pid_t child_at_birth(pid_t runner) {
  const long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
  ::ptrace(PTRACE_SETOPTIONS, runner, nullptr, options);
  ::ptrace(PTRACE_CONT, runner, nullptr, 0L);
  int status = 0;
  if (::waitpid(runner, &status, 0) != runner || status >> 8 != (SIGTRAP | PTRACE_EVENT_FORK << 8))
    return -1;
  unsigned long child = 0;
  ::ptrace(PTRACE_GETEVENTMSG, runner, nullptr, &child);
  const auto pid = static_cast<pid_t>(child);
  return ::waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status) ? pid : -1;
}

TEST(BenchProcessTest, AProgramWhoseRunnerDiesAtTheForkIsNotStarted) {
  const pid_t runner = start_runner();
  if (runner < 0) GTEST_SKIP() << "nobody may trace a process here";
  const pid_t child = child_at_birth(runner);
  ASSERT_GT(child, 0);
  ::kill(runner, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(runner, &status, 0), runner);
  ASSERT_TRUE(WIFSIGNALED(status));
  ::ptrace(PTRACE_CONT, child, nullptr, 0L);
  ASSERT_EQ(::waitpid(child, &status, __WALL),
            child);  // it ends, or stands at the program's first instruction
  const bool ended = WIFEXITED(status);
  if (!ended) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, __WALL);
  }
  EXPECT_TRUE(ended) << "status " << std::hex << status;
}

TEST(BenchProcessTest, AProgramThatIsStoppedEndsAtItsDeadline) {
  const ProgramResult result = ProgramRunner().run({{"/bin/sh", "-c", "kill -STOP $$"}},
                                                   Deadline::after(std::chrono::milliseconds(100)));
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
}

}  // namespace
}  // namespace lockstep::bench
