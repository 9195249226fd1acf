// Other processes of this host.
#pragma once

#include <string>

#include "base/fd.h"

namespace lockstep::base {

// A descriptor that becomes readable when the process ends. It means this process, even if another one gets the same
// number later. None, with errno, if it cannot be had: ESRCH if the process is gone already.
Fd open_pidfd(int pid);

// The name of this process's PID namespace: PIDs can be compared where it is the same. Empty if it cannot be read.
std::string process_namespace();

// The nearest process above this one that has this name (its first 15 letters); 0 if there is none, or /proc is not
// there.
int ancestor_named(const std::string& name);

}  // namespace lockstep::base
