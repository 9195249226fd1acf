#include "base/process.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "base/files.h"

namespace lockstep::base {

Fd open_pidfd(int pid) {
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

std::string process_namespace() {
  return link_target("/proc/self/ns/pid");
}

}  // namespace lockstep::base
