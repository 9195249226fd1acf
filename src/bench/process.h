// Runs other programs, one at a time, and captures their output. Nothing is left of a program that
// could disturb the next one.
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

// Thrown after Ctrl-C, SIGTERM or SIGHUP. It is not an error: the benchmark ends.
struct Interrupted {
  int signal = 0;
};

// Runs programs as children in process groups of their own.
//
// Threads:   for a process with one thread, and without other children.
// Blocking:  run() blocks until the program has ended, or until some seconds after its deadline.
// Failure:   run() throws Interrupted if a signal came. The program and everything below it have
//            ended by then.
// Ownership: takes the signals from the process's own handlers for good. Ends what is left of a
//            program.
//
// However run() ends, nothing is left of the program. If this process is killed meanwhile, the
// program gets a signal, and must itself end what it has started.
class ProgramRunner {
 public:
  ProgramRunner();
  ~ProgramRunner();
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;

  using Variables = std::vector<std::pair<std::string, std::string>>;

  // `command` begins with a path, or with a name that is looked up in PATH. `variables` are added
  // to the environment. The program gets `death_signal` when this process dies. With SIGTERM it can
  // end what it has started, but a stopped program takes the signal only when it is continued.
  // SIGKILL always works at once, and is for a program whose children notice its end.
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
