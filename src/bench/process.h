// Other programs, run one at a time with their output captured, so that nothing of them disturbs the next.
#pragma once

#include <lockstep/deadline.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace lockstep::bench {

struct ProgramResult {
  int exit_code = 0;  // or 128 + the signal that ended it; 127 if it could not be started
  bool timed_out = false;
  std::string out;
  std::string err;
};

// Ctrl-C, or a SIGTERM or SIGHUP: not an error, but the end.
struct Interrupted {
  int signal = 0;
};

// Runs programs as children in a process group of their own.
//
// Threads:   the only one of its process, and the only one with children.
// Blocking:  run() until the program has ended, or some seconds after its deadline.
// Failure:   run() throws Interrupted when a signal came, after the program and all below it are gone.
// Ownership: keeps the signals from the process's own handlers, for good; ends what is still there.
//
// Whichever way run() ends, nothing is left of the program. If this process is killed meanwhile, the program gets a signal,
// and what it has started is its own affair.
class ProgramRunner {
 public:
  ProgramRunner();
  ~ProgramRunner();
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;

  using Variables = std::vector<std::pair<std::string, std::string>>;

  // `command` begins with a path, or with a name for PATH; `variables` are added to the environment. The program gets
  // `death_signal` when this process dies: SIGTERM lets it end what it has started, and waits while somebody has stopped
  // it; SIGKILL waits for nothing, and is for a program whose children notice.
  ProgramResult run(const std::vector<std::string>& command, const Variables& variables,
                    Deadline deadline, int death_signal = SIGTERM);

 private:
  struct Child;
  Child start(const std::vector<std::string>& command, const Variables& variables,
              int death_signal);
  bool follow(Child& child, int signals, Deadline deadline, ProgramResult& result);

  base::Fd signals_;
  sigset_t original_mask_{};
};

}  // namespace lockstep::bench
