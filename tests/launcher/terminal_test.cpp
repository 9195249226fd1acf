// What happens on a terminal: colours, and Ctrl-C, which the terminal sends by itself.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// A program whose terminal is ours.
class OnTerminal {
 public:
  OnTerminal(const std::vector<std::string>& arguments, bool no_colour) {
    int master = -1;
    pid_ = ::forkpty(&master, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      if (kSlowBuild) ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
      no_colour ? ::setenv("NO_COLOR", "1", 1) : ::unsetenv("NO_COLOR");
      std::vector<char*> argv;
      for (const auto& text : arguments) argv.push_back(const_cast<char*>(text.c_str()));
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    master_ = base::Fd(master);
  }
  ~OnTerminal() {
    if (ended_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void type(const std::string& keys) {
    ASSERT_EQ(::write(master_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  bool wait_for(const std::string& text, int times, Deadline deadline) {
    while (count(screen_, text) < times) {
      if (!read_some(deadline)) return false;
    }
    return true;
  }

  // The exit code; −1 when the end did not come in time.
  int finish(Deadline deadline) {
    while (read_some(deadline)) {
    }
    if (deadline.expired()) return -1;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  const std::string& screen() const { return screen_; }

 private:
  bool read_some(Deadline deadline) {
    if (!base::wait_ready(master_.get(), POLLIN, deadline)) return false;
    char buffer[4096];
    const ssize_t got = ::read(master_.get(), buffer, sizeof buffer);
    if (got > 0) screen_.append(buffer, static_cast<std::size_t>(got));
    return got > 0;
  }

  pid_t pid_ = -1;
  base::Fd master_;
  std::string screen_;
  bool ended_ = false;
};

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

}  // namespace
}  // namespace lockstep::testing
