// What workers print, as the user sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

TEST(OutputTest, EachLineBearsTheRankAndGoesWhereTheWorkerSentIt) {
  Command command(
      {LOCKSTEP_BINARY, "run", "-n", "2", "--", "/bin/sh", "-c", "echo out; echo err >&2"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_THAT(lines_of(command.out()), UnorderedElementsAre("[0] out", "[1] out"));
  EXPECT_THAT(lines_of(command.err()), UnorderedElementsAre("[0] err", "[1] err"));
}

TEST(OutputTest, RanksAreAlignedAndALastLineIsCompleted) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "11", "--", "/bin/sh", "-c", "printf here"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_THAT(lines_of(command.out()), Contains("[ 3] here"));
  EXPECT_THAT(lines_of(command.out()), Contains("[10] here"));
  EXPECT_EQ(command.out().back(), '\n');
}

TEST(OutputTest, ManyLinesOfManyWorkersArriveWholeAndInOrder) {
  constexpr int kWorkers = 8;
  const int lines = kSlowBuild ? 500 : 2500;
  Command command = run_actor(kWorkers, {"lines", std::to_string(lines)});
  ASSERT_TRUE(command.finish(seconds(50)));
  EXPECT_EQ(command.exit_code(), 0);
  std::map<int, int> next;
  for (const auto& line : lines_of(command.out())) {
    int prefix = -1;
    int rank = -1;
    int number = -1;
    int end = 0;
    ASSERT_EQ(std::sscanf(line.c_str(), "[%d] <%d %d %n", &prefix, &rank, &number, &end), 3)
        << line;
    ASSERT_EQ(prefix, rank) << line;
    ASSERT_EQ(number, next[rank]++) << line;
    const std::string filler(static_cast<std::size_t>(number % 100), static_cast<char>('a' + rank));
    ASSERT_EQ(line.substr(static_cast<std::size_t>(end)), filler + ">") << line;
  }
  for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(next[rank], lines) << rank;
}

TEST(OutputTest, BothStreamsIntoOnePipeDoNotMix) {
  const std::string script = "for i in $(seq 300); do echo out-$i-end; echo err-$i-end >&2; done";
  Command command(
      {"/bin/sh", "-c", quoted(LOCKSTEP_BINARY) + " run -n 4 -- /bin/sh -c '" + script + "' 2>&1"});
  ASSERT_TRUE(command.finish(seconds(30)));
  const auto lines = lines_of(command.out());
  EXPECT_EQ(lines.size(), 2400U);
  for (const auto& line : lines) {
    const bool starts = line.find("] out-") == 2 || line.find("] err-") == 2;
    ASSERT_TRUE(starts && line.find("-end") == line.size() - 4 && count(line, "-end") == 1) << line;
  }
}

TEST(OutputTest, MegabyteLongLineArrivesInOnePiece) {
  Command command = run_actor(2, {"long", "1000000"});
  ASSERT_TRUE(command.finish(seconds(30)));
  const auto lines = lines_of(command.out());
  ASSERT_EQ(lines.size(), 2U);
  for (const auto& line : lines) EXPECT_EQ(line.size(), 1000004U);
}

TEST(OutputTest, LineWithoutEndIsCutAndNothingIsLost) {
  Command command = run_actor(1, {"long", "5000000"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(std::count(command.out().begin(), command.out().end(), 'x'), 5000000);
  EXPECT_GT(lines_of(command.out()).size(), 1U);
}

TEST(OutputTest, ProgressBarEndsInItsLastState) {
  Command command = run_actor(1, {"bar"});
  ASSERT_TRUE(command.finish(seconds(20)));
  const auto lines = lines_of(command.out());
  EXPECT_THAT(lines, Contains("[0] step 100 %"));
  EXPECT_THAT(lines, Contains("[0] done"));
  EXPECT_LT(lines.size(), 50U);
}

TEST(OutputTest, NoColourIntoAPipe) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/echo", "text"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.out(), "[0] text\n");
}

TEST(OutputTest, LogFilesHoldTheBytesWithoutPrefix) {
  char pattern[] = "/tmp/lockstep-logs-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern);
  Command command({LOCKSTEP_BINARY, "run", "-n", "2", "--log-dir", (folder / "deep/er").string(),
                   "--", "/bin/sh", "-c", "printf 'a\\rb\\nno end'; echo e$RANK >&2"});
  ASSERT_TRUE(command.finish(seconds(20)));
  const auto content = [&](const char* name) {
    std::ostringstream text;
    text << std::ifstream(folder / "deep/er" / name).rdbuf();
    return text.str();
  };
  EXPECT_EQ(content("rank-1.out"), "a\rb\nno end");
  EXPECT_EQ(content("rank-1.err"), "e1\n");
  EXPECT_EQ(content("rank-0.err"), "e0\n");
  std::filesystem::remove_all(folder);
}

TEST(OutputTest, ClosedReaderEndsTheWorkersAndSaysSo) {
  Command command = run_actor(2, {"flood"});
  ASSERT_TRUE(command.wait_for("flood", 10, seconds(20)));
  command.close_out();
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 141);
  EXPECT_THAT(command.err(), HasSubstr("nobody reads the output"));
}

// More than a pipe holds and less than makes a worker wait: the launcher keeps it.
constexpr const char* kPrintMuch = "seq 50000; echo printed >&2; ";

TEST(OutputTest, ReaderThatClosesAfterTheWorkersHaveEndedIsABrokenPipeToo) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/sh", "-c", kPrintMuch});
  ASSERT_TRUE(command.wait_for_in_err("printed", seconds(20)));
  ASSERT_TRUE(wait_for_children(command.pid(), 0, seconds(20)));
  command.close_out();
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 141);
  EXPECT_EQ(command.err(), "[0] printed\nlockstep: nobody reads the output any more\n");
}

TEST(OutputTest, FailureOfAWorkerIsReportedWhenItsOutputIsLostLater) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/sh", "-c",
                   std::string(kPrintMuch) + "exit 7"});
  ASSERT_TRUE(command.wait_for_in_err("printed", seconds(20)));
  ASSERT_TRUE(wait_for_children(command.pid(), 0, seconds(20)));
  command.close_out();
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 7);
  EXPECT_THAT(command.err(), HasSubstr("exited with code 7"));
}

Command run_redirected(const std::string& command, const std::string& redirection) {
  return Command({"/bin/sh", "-c",
                  "exec " + quoted(LOCKSTEP_BINARY) + " run -n 1 -- " + command + redirection});
}

TEST(OutputTest, FullDiskIsSaidWithTheBytesItCostAndIsAFailure) {
  Command command = run_redirected("/bin/echo text", " >/dev/full");
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), HasSubstr("lockstep: cannot write standard output: No space left on "
                                       "device; dropped 9 bytes"));
  EXPECT_EQ(lines_of(command.err()).size(), 1U) << command.err();
}

TEST(OutputTest, FullDiskEndsTheWorkers) {
  Command command = run_redirected(quoted(ACTOR_BINARY) + " flood", " >/dev/full");
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), HasSubstr("cannot write standard output: No space left on device"));
  EXPECT_THAT(command.err(), HasSubstr("the workers were ended"));
  EXPECT_THAT(command.err(), Not(HasSubstr("nobody reads")));
}

TEST(OutputTest, AFileThatMayNotGrowFurtherIsSaidToo) {
  const std::string flood =
      quoted(LOCKSTEP_BINARY) + " run -n 1 -- " + quoted(ACTOR_BINARY) + " flood";
  Command command({"/bin/sh", "-c",
                   "file=$(mktemp) && ulimit -f 4096 && " + flood +
                       " >$file; code=$?; rm -f $file; exit $code"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), HasSubstr("cannot write standard output: File too large"));
}

TEST(OutputTest, StandardErrorThatCannotBeWrittenIsSaidOnStandardOutput) {
  Command command = run_redirected("/bin/sh -c 'echo text >&2'", " 2>/dev/full");
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.out(), HasSubstr("lockstep: cannot write standard error: No space left on "
                                       "device; dropped 9 bytes"));
}

// The reader stays but takes nothing: the launcher must still hear signals and end.
TEST(OutputTest, StalledReaderDoesNotKeepTheLauncherFromEnding) {
  Command command = run_actor(2, {"flood"}, {"--grace", "1"});
  ASSERT_TRUE(command.wait_for("flood", 10, seconds(20)));
  command.signal(SIGTERM);
  ASSERT_TRUE(command.wait_for_end_unread(seconds(20)));
  EXPECT_EQ(command.exit_code(), 143);
}

}  // namespace
}  // namespace lockstep::testing
