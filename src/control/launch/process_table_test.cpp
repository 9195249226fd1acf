#include "control/launch/process_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/fd.h"

namespace lockstep::control {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<pid_t> pids(const std::vector<ProcessEntry>& entries) {
  std::vector<pid_t> result;
  for (const auto& entry : entries) result.push_back(entry.pid);
  return result;
}

TEST(ParseStatTest, ReadsPidParentAndState) {
  EXPECT_EQ(parse_stat("42 (sh) S 7 42 42 0 -1"), (ProcessEntry{42, 7, false}));
  EXPECT_EQ(parse_stat("42 (sh) Z 7 42 42 0 -1"), (ProcessEntry{42, 7, true}));
  EXPECT_EQ(parse_stat("42 (sh) T 7 42 42 0 -1"), (ProcessEntry{42, 7, false, true}));
  EXPECT_EQ(parse_stat("42 (sh) t 7 42 42 0 -1"), (ProcessEntry{42, 7, false, true}));
}

TEST(ParseStatTest, NameMayHoldBlanksAndBrackets) {
  EXPECT_EQ(parse_stat("42 (a) S 1 (b) R 9 1 1"), (ProcessEntry{42, 9, false}));
}

TEST(ParseStatTest, GarbageIsNothing) {
  for (const char* text : {"", "42", "42 (sh)", "42 (sh) S", "x (sh) S 7 1", "42 (sh) S x 1"}) {
    EXPECT_EQ(parse_stat(text), std::nullopt) << text;
  }
}

TEST(DescendantsTest, FindsTheWholeFamilyAndNobodyElse) {
  const std::vector<ProcessEntry> table = {{1, 0},   {10, 1}, {11, 10}, {12, 11},
                                           {13, 10}, {20, 1}, {21, 20}};
  EXPECT_THAT(pids(descendants(table, 10)), UnorderedElementsAre(11, 12, 13));
  EXPECT_THAT(pids(descendants(table, 21)), IsEmpty());
}

TEST(DescendantsTest, ZombiesAreNotCounted) {
  EXPECT_THAT(pids(descendants({{11, 10, true}, {12, 10}}, 10)), UnorderedElementsAre(12));
}

TEST(DescendantsTest, TableReadWhileProcessesChangeMayHoldACycle) {
  EXPECT_THAT(pids(descendants({{10, 12}, {11, 10}, {12, 11}}, 10)), UnorderedElementsAre(11, 12));
}

TEST(IsStoppedTest, LooksAtAProcessAndAtWhatItHasStarted) {
  const std::vector<ProcessEntry> table = {
      {10, 1}, {11, 10, false, true}, {20, 1}, {21, 20}, {30, 1, false, true}};
  EXPECT_TRUE(is_stopped(table, 10));
  EXPECT_TRUE(is_stopped(table, 30));
  EXPECT_FALSE(is_stopped(table, 20));
  EXPECT_FALSE(is_stopped(table, 99));
}

TEST(ProcessTableTest, HoldsThisProcess) {
  const auto table = read_process_table();
  EXPECT_THAT(table, testing::Contains(ProcessEntry{::getpid(), ::getppid(), false}));
}

// A family in which everybody breeds: children, and grandchildren that leave their session.
[[noreturn]] void breed(int depth) {
  for (int child = 0; child < 3 && depth > 0; ++child) {
    if (::fork() == 0) {
      if (child == 0) ::setsid();
      breed(depth - 1);
    }
  }
  ::alarm(30);
  while (true) ::pause();
}

// In a process of its own: the family's root must be a subreaper, which a test program should not
// stay.
TEST(EndDescendantsTest, NobodyEscapesAndTheCountIsRight) {
  const pid_t root = ::fork();
  ASSERT_GE(root, 0);
  if (root == 0) {
    ::alarm(30);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child, nullptr);
    for (int i = 0; i < 2; ++i) {
      if (::fork() == 0) breed(3);
    }
    const auto ended = end_descendants(Deadline::after(std::chrono::seconds(10)));
    const bool none_left =
        ended.left.empty() && descendants(read_process_table(), ::getpid()).empty();
    ::_exit(none_left && ended.killed >= 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(root, &status, 0), root);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::control
