// What happens on a terminal: colours, Ctrl-C, which the terminal sends by itself, and one that
// nobody reads.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <termios.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/launcher/terminal.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

TEST(TerminalTest, PrefixIsColouredUnlessNoColorIsSet) {
  OnTerminal plain({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/echo", "text"}, true);
  EXPECT_EQ(plain.finish(seconds(20)), 0);
  EXPECT_EQ(plain.screen(), "[0] text\r\n");
  OnTerminal coloured({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/echo", "text"}, false);
  EXPECT_EQ(coloured.finish(seconds(20)), 0);
  EXPECT_THAT(coloured.screen(), HasSubstr("\x1b["));
  EXPECT_THAT(coloured.screen(), HasSubstr("text\r\n"));
}

TEST(TerminalTest, CtrlCArrivesOnceAtEachWorker) {
  OnTerminal terminal({LOCKSTEP_BINARY, "run", "-n", "3", "--", ACTOR_BINARY, "catch"}, true);
  ASSERT_TRUE(terminal.wait_for("ready", 3, seconds(20)));
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(seconds(20)), 130);
  EXPECT_EQ(count(terminal.screen(), "caught " + std::to_string(SIGINT)), 3) << terminal.screen();
}

TEST(TerminalTest, SecondCtrlCKills) {
  OnTerminal terminal(
      {LOCKSTEP_BINARY, "run", "-n", "2", "--grace", "100", "--", ACTOR_BINARY, "stubborn"}, true);
  ASSERT_TRUE(terminal.wait_for("ready", 2, seconds(20)));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("passed SIGINT on", 1, seconds(20)));
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(seconds(20)), 130);
}

// The launcher is told twice, by the signal and by output that cannot be written, in any order; workers have their time to
// end whichever comes first.
TEST(TerminalTest, ClosedTerminalIsAHangupForEveryWorker) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / make_marker();
  std::filesystem::create_directory(folder);
  const std::string script = "trap 'sleep 1.7; echo done > " + quoted(folder.string()) +
                             "/$RANK; exit 3' HUP; while echo ready; do sleep 0.01; done";
  OnTerminal terminal({LOCKSTEP_BINARY, "run", "-n", "2", "--", "/bin/sh", "-c", script}, true);
  for (const char* const worker : {"[0] ready", "[1] ready"})  // each has set its trap
    ASSERT_TRUE(terminal.wait_for(worker, 1, seconds(20)));
  EXPECT_EQ(terminal.hang_up(seconds(20)), 128 + SIGHUP);
  EXPECT_TRUE(std::filesystem::exists(folder / "0") && std::filesystem::exists(folder / "1"));
  std::filesystem::remove_all(folder);
}

// The two ends of a terminal. The writer's is open here too, so that it lives as long as this.
struct TerminalPair {
  TerminalPair() : master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    ::grantpt(master.get());
    ::unlockpt(master.get());
    path = ::ptsname(master.get());
    slave = base::Fd(::open(path.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  }

  base::Fd master;
  base::Fd slave;
  std::string path;
};

// More than a terminal and a worker's pipe hold together, and less than makes a worker wait.
constexpr int kManyLines = 40000;
constexpr const char* kPrintMany = "seq 40000; echo printed >&2; ";

// With the worker's standard output on the terminal, and its standard error in a pipe.
Command run_on(const TerminalPair& terminal, const std::string& script,
               std::vector<std::string> variables = {}) {
  return Command({"/bin/sh", "-c",
                  "NO_COLOR=1 exec " + quoted(LOCKSTEP_BINARY) +
                      " run -n 1 --grace 1 -- /bin/sh -c '" + script + "' >" + terminal.path},
                 std::move(variables));
}

bool is_nonblocking(pid_t pid, int fd) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/fdinfo/" + std::to_string(fd));
  std::string word;
  while (file >> word && word != "flags:") {
  }
  file >> word;
  return (std::stoi(word, nullptr, 8) & O_NONBLOCK) != 0;
}

TEST(TerminalTest, TerminalThatNobodyReadsDoesNotKeepTheJobFromEnding) {
  const TerminalPair terminal;
  const std::string marker = make_marker();
  Command command = run_on(terminal, std::string(kPrintMany) + "exec sleep 60", {marker});
  ASSERT_TRUE(command.wait_for("printed", 1, seconds(20)));
  EXPECT_FALSE(is_nonblocking(command.pid(), STDOUT_FILENO));  // the shell's terminal
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(10)));
  EXPECT_EQ(command.exit_code(), 143);
  EXPECT_THAT(processes_with(marker), IsEmpty());
}

TEST(TerminalTest, LateReaderOfATerminalMissesNothing) {
  const TerminalPair terminal;
  Command command = run_on(terminal, kPrintMany);
  ASSERT_TRUE(command.wait_for("printed", 1, seconds(20)));
  const std::string last = "[0] " + std::to_string(kManyLines) + "\r\n";
  std::string screen;
  char buffer[4096];
  while (count(screen, last) == 0 && base::wait_ready(terminal.master.get(), POLLIN, seconds(10))) {
    const ssize_t got = ::read(terminal.master.get(), buffer, sizeof buffer);
    ASSERT_GT(got, 0);
    screen.append(buffer, static_cast<std::size_t>(got));
  }
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 0);
  const auto lines = lines_of(screen);
  ASSERT_EQ(lines.size(), static_cast<std::size_t>(kManyLines));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    ASSERT_EQ(lines[i], "[0] " + std::to_string(i + 1) + "\r");
  }
}

TEST(TerminalTest, TerminalThatGoesAwayAfterTheWorkersHaveEndedIsAFailure) {
  TerminalPair terminal;
  Command command = run_on(terminal, kPrintMany);
  ASSERT_TRUE(command.wait_for("printed", 1, seconds(20)));
  ASSERT_TRUE(wait_for_children(command.pid(), 0, seconds(20)));
  terminal.master.reset();
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 1);
  ASSERT_EQ(lines_of(command.err()).size(), 2U) << command.err();
  EXPECT_THAT(lines_of(command.err())[1],
              MatchesRegex("lockstep: cannot write standard output: Input/output error; "
                           "dropped [0-9]+ bytes"));
}

// Opening the master again would make another terminal, which nobody looks at.
TEST(TerminalTest, MasterAsStandardOutputIsWrittenItself) {
  TerminalPair terminal;
  termios raw{};
  ASSERT_EQ(::tcgetattr(terminal.slave.get(), &raw), 0);
  ::cfmakeraw(&raw);
  ASSERT_EQ(::tcsetattr(terminal.slave.get(), TCSANOW, &raw), 0);
  const base::Fd inherited(::fcntl(terminal.master.get(), F_DUPFD, 3));
  ASSERT_LT(inherited.get(), 10);  // more digits are too many for a shell
  Command command({"/bin/sh", "-c",
                   "NO_COLOR=1 exec " + quoted(LOCKSTEP_BINARY) + " run -n 1 -- /bin/echo text >&" +
                       std::to_string(inherited.get())});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 0);
  ASSERT_TRUE(base::wait_ready(terminal.slave.get(), POLLIN, seconds(10)));
  char buffer[64];
  const ssize_t got = ::read(terminal.slave.get(), buffer, sizeof buffer);
  ASSERT_GT(got, 0);
  EXPECT_EQ(std::string(buffer, static_cast<std::size_t>(got)), "[0] text\n");
}

}  // namespace
}  // namespace lockstep::testing
