#include "base/process.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/check.h"
#include "base/files.h"

namespace lockstep::base {

Fd open_pidfd(int pid) {
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

OriginalProcess::OriginalProcess() {
  static const int failed = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  LOCKSTEP_CHECK(failed == 0, "there is memory for one more handler of fork()");
  forks_ = forks.load();
}

std::string process_namespace() {
  return link_target("/proc/self/ns/pid");
}

// "PID (NAME) STATE PARENT …", where the name may hold anything.
int ancestor_named(const std::string& name) {
  int parent = ::getppid();
  while (parent > 0) {
    std::string line;
    std::getline(std::ifstream("/proc/" + std::to_string(parent) + "/stat"), line);
    const std::size_t begin = line.find('(');
    const std::size_t end = line.rfind(')');
    if (begin == std::string::npos || end == std::string::npos || end + 4 >= line.size()) break;
    if (line.substr(begin + 1, end - begin - 1) == name) return parent;
    parent = std::atoi(line.c_str() + end + 4);
  }
  return 0;
}

}  // namespace lockstep::base
