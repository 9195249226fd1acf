// Runs other programs, alone or side by side, and captures their output. Nothing is left of a program
// that could disturb the next one.
#pragma once

#include <lockstep/deadline.h>

#include <csignal>
#include <cstddef>
#include <functional>
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

struct Program {
  using Variables = std::vector<std::pair<std::string, std::string>>;

  std::vector<std::string> command;  // begins with a path, or with a name that is looked up in PATH
  Variables variables;               // are added to the environment
  // What the program gets when this process dies. With SIGTERM it can end what it has started, but
  // a stopped program takes the signal only when it is continued. SIGKILL always works at once, and
  // is for a program whose children notice its end.
  int death_signal = SIGTERM;
  // Called in the child before it becomes the program; if it returns false, the program could not be
  // started.
  std::function<bool()> enter;
};

// What is done while programs run side by side.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  virtual int fd() const = 0;  // readable() is called when it is
  virtual void readable() = 0;
  virtual void ended(std::size_t program) = 0;
};

// Thrown after Ctrl-C, SIGTERM or SIGHUP. It is not an error: the benchmark ends.
struct Interrupted {
  int signal = 0;
};

// Runs programs as children in process groups of their own.
//
// Threads:   for a process with one thread, and without other children.
// Blocking:  run() blocks until all programs have ended, or until some seconds after their deadline.
// Failure:   run() throws Interrupted if a signal came. The programs and everything below them have
//            ended by then.
// Ownership: takes the signals from the process's own handlers for good. Ends what is left of
//            programs.
//
// However run() ends, nothing is left of the programs. If this process is killed meanwhile, each gets
// its signal, and must itself end what it has started.
class ProgramRunner {
 public:
  ProgramRunner();
  ~ProgramRunner();
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;

  ProgramResult run(const Program& program, Deadline deadline);

  // All at the same time; results in their order. `meanwhile` may be null.
  std::vector<ProgramResult> run(const std::vector<Program>& programs, Deadline deadline,
                                 Meanwhile* meanwhile);

 private:
  struct Child;
  Child start(const Program& program);
  void follow(std::vector<Child>& children, int signals, Deadline deadline, Meanwhile* meanwhile);

  base::Fd signals_;
  sigset_t original_mask_{};
};

}  // namespace lockstep::bench
