// The `lockstep` command under test, with its output captured and a limit on every wait.
#pragma once

#include <lockstep/deadline.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "tests/support/slow_build.h"

namespace lockstep::testing {

inline Deadline seconds(int count) {
  return Deadline::after(std::chrono::seconds(count));
}

// Threads:   one caller at a time.
// Blocking:  every wait ends at its deadline.
// Failure:   what did not happen in time is visible in the results; nothing throws.
// Ownership: kills and reaps the process if it still runs.
class Command {
 public:
  // `arguments` begin with the program; `variables` ("K=V") are added to the environment.
  // The child calls `enter` before it becomes the program, and ends with 126 if that is false.
  explicit Command(std::vector<std::string> arguments, std::vector<std::string> variables = {},
                   const std::function<bool()>& enter = nullptr);
  Command(Command&&) = default;
  ~Command();

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // Reads until standard output and error together hold `text` this many times.
  bool wait_for(const std::string& text, int times, Deadline deadline);

  // Reads standard error alone until it holds `text`: nobody takes standard output meanwhile.
  bool wait_for_in_err(const std::string& text, Deadline deadline);

  // Reads everything and waits for the end. False when it did not come in time.
  bool finish(Deadline deadline);

  // Waits for the end like a reader that stays and takes nothing.
  bool wait_for_end_unread(Deadline deadline) { return reap(deadline); }

  // Like a reader that goes away.
  void close_out() { out_pipe_.reset(); }

  // After finish(): the exit code, or 128 + the signal; −1 before.
  int exit_code() const { return exit_code_; }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  bool read_some(Deadline deadline);
  bool reap(Deadline deadline);

  pid_t pid_ = -1;
  base::Fd ended_;  // a pidfd
  base::Fd out_pipe_;
  base::Fd err_pipe_;
  std::string out_;
  std::string err_;
  int exit_code_ = -1;
};

// `lockstep run -n WORKERS [options] -- actor ROLE…`
Command run_actor(int workers, std::vector<std::string> role, std::vector<std::string> options = {},
                  std::vector<std::string> variables = {});

// A value that no other process on the host carries in its environment, as
// "LOCKSTEP_TEST_MARKER=…".
std::string make_marker();

// The living processes that carry it.
std::vector<pid_t> processes_with(const std::string& marker);

// The living children of a process.
std::vector<pid_t> children_of(pid_t parent);

// False when it did not come to have this many in time.
bool wait_for_children(pid_t parent, std::size_t number, Deadline deadline);

// A path as one word of a shell's command line.
inline std::string quoted(const std::string& path) {
  return '"' + path + '"';
}

// Lines of text.
std::vector<std::string> lines_of(const std::string& text);
int count(const std::string& text, const std::string& piece);

}  // namespace lockstep::testing
