#include "control/launch/worker_end.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "control/launch/program.h"

namespace lockstep::control {
namespace {

const char* hint(int signal) {
  if (signal == SIGKILL) return "; if you did not do it, memory may have run out: see `dmesg`";
  if (signal == SIGILL) return "; built for another processor?";
  return "";
}

}  // namespace

WorkerEnd worker_end(int rank, int wait_status) {
  if (WIFSIGNALED(wait_status)) return {rank, WorkerEnd::How::kKilled, WTERMSIG(wait_status)};
  return {rank, WorkerEnd::How::kExited, WEXITSTATUS(wait_status)};
}

int exit_code(const WorkerEnd& end) {
  switch (end.how) {
    case WorkerEnd::How::kExited:
      return end.value;
    case WorkerEnd::How::kKilled:
      return kSignalBase + end.value;
    case WorkerEnd::How::kNotStarted:
      if (end.value == EAGAIN || end.value == ENOMEM) return 1;
      return end.value == ENOENT ? kNotFound : kCannotExecute;
  }
  return 1;
}

std::string describe(const WorkerEnd& end) {
  switch (end.how) {
    case WorkerEnd::How::kExited:
      return fmt::format("exited with code {}", end.value);
    case WorkerEnd::How::kKilled: {
      const char* name = sigabbrev_np(end.value);
      if (name == nullptr) return fmt::format("was killed by signal {}", end.value);
      return fmt::format("was killed by SIG{} ({}){}", name, sigdescr_np(end.value),
                         hint(end.value));
    }
    case WorkerEnd::How::kNotStarted:
      return fmt::format("could not be started: {}", std::strerror(end.value));
  }
  return "ended";
}

}  // namespace lockstep::control
