// Other processes of this host.
#pragma once

#include <string>

#include "base/fd.h"

namespace lockstep::base {

// A descriptor that is readable when the process has ended, and means this process even if another one gets its number then. None,
// with errno: ESRCH when it is gone already.
Fd open_pidfd(int pid);

// Numbers of processes mean the same where this is the same; empty where it cannot be told.
std::string process_namespace();

}  // namespace lockstep::base
