// Other processes of this host.
#pragma once

#include <atomic>
#include <string>

#include "base/fd.h"

namespace lockstep::base {

// A descriptor that becomes readable when the process ends. It means this process, even if another one gets the same
// number later. None, with errno, if it cannot be had: ESRCH if the process is gone already.
Fd open_pidfd(int pid);

// The name of this process's PID namespace: PIDs can be compared where it is the same. Empty if it cannot be read.
std::string process_namespace();

// Tells the process in which it was made from a child of that process, made by fork(). Asking costs no system call.
class OriginalProcess {
 public:
  OriginalProcess();
  bool left() const { return forks_ != forks.load(std::memory_order_relaxed); }  // this is a child

 private:
  static inline std::atomic<unsigned> forks{0};  // between the program's start and this process
  unsigned forks_;
};

// The nearest process above this one that has this name (its first 15 letters); 0 if there is none, or /proc is not
// there.
int ancestor_named(const std::string& name);

}  // namespace lockstep::base
