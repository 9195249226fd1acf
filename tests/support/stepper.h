// Another process, one instruction at a time.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>

namespace lockstep::testing {

// Holds the first thread of a child process, whose other threads go on.
//
// Not every processor gets on in such steps: where an atomic operation is a loop, an interrupt between its ends makes it
// begin again. So whoever steps gives up at some number.
class Stepper {
 public:
  explicit Stepper(pid_t process) : process_(process) {
    held_ = ::ptrace(PTRACE_SEIZE, process, nullptr, nullptr) == 0;
    if (!held_) return;
    ::ptrace(PTRACE_INTERRUPT, process, nullptr, nullptr);
    await_stop();
  }
  ~Stepper() {
    if (held_) ::ptrace(PTRACE_DETACH, process_, nullptr, nullptr);
  }
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  // False where nobody may trace, and when the process has ended.
  bool held() const { return held_; }

  void step() {
    if (!held_) return;
    ::ptrace(PTRACE_SINGLESTEP, process_, nullptr, nullptr);
    await_stop();
  }

  // Lets go of it, with a signal that it gets before its next instruction.
  void release(int signal) {
    if (!held_) return;
    ::kill(process_, signal);
    ::ptrace(PTRACE_DETACH, process_, nullptr, nullptr);
    held_ = false;
  }

 private:
  void await_stop() {
    int status = 0;
    held_ = ::waitpid(process_, &status, __WALL) == process_ && WIFSTOPPED(status);
  }

  pid_t process_;
  bool held_ = false;
};

}  // namespace lockstep::testing
