// A program on a terminal of its own.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/process.h"
#include "tests/launcher/command.h"

namespace lockstep::testing {

// A program whose terminal is ours.
class OnTerminal {
 public:
  // `variables` ("K=V") are added to the environment.
  OnTerminal(const std::vector<std::string>& arguments, bool no_colour,
             std::vector<std::string> variables = {}) {
    int master = -1;
    pid_ = ::forkpty(&master, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      if (kSlowBuild) ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
      no_colour ? ::setenv("NO_COLOR", "1", 1) : ::unsetenv("NO_COLOR");
      for (auto& variable : variables) ::putenv(variable.data());
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
    return deadline.expired() ? -1 : reap();
  }

  // Closes the terminal, as a window that is closed or a connection that is lost does; then as finish().
  int hang_up(Deadline deadline) {
    const base::Fd process = base::open_pidfd(pid_);
    master_.reset();
    return base::wait_ready(process.get(), POLLIN, deadline) ? reap() : -1;
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

  int reap() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  pid_t pid_ = -1;
  base::Fd master_;
  std::string screen_;
  bool ended_ = false;
};

}  // namespace lockstep::testing
