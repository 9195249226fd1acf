#include "control/launch/job_state.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "control/launch/program.h"

namespace lockstep::control {
namespace {

constexpr int kSignalBase = 128;

bool asks_for_the_end(int signal) {
  constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  return std::find(kSignals.begin(), kSignals.end(), signal) != kSignals.end();
}

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

std::optional<WorkerEnd> first_failure(const std::vector<WorkerEnd>& together) {
  std::optional<WorkerEnd> blamed;
  for (const auto& end : together) {
    if (!end.failed()) continue;
    const bool graver =
        blamed && blamed->how == WorkerEnd::How::kExited && end.how != WorkerEnd::How::kExited;
    if (!blamed || graver) blamed = end;
  }
  return blamed;
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

JobState::Orders JobState::on_ends(const std::vector<WorkerEnd>& together, Clock::time_point now) {
  live_ -= static_cast<int>(together.size());
  Orders orders;
  if (const auto failed = first_failure(together); failed && cause_ == Cause::kNone) {
    failure_ = failed;
    orders =
        end(Cause::kFailure, control::exit_code(*failed), SIGTERM, now + limits_.after_failure);
  }
  return live_ <= 0 ? release() : orders;
}

JobState::Orders JobState::on_signal(int signal, Clock::time_point now) {
  if (released_) return {};
  if (!asks_for_the_end(signal)) return {.forward = {signal}};
  if (cause_ == Cause::kNone)
    return end(Cause::kSignal, kSignalBase + signal, signal, now + limits_.grace);
  if (signal == SIGINT) return release();
  return {.forward = {signal}};
}

JobState::Orders JobState::on_output_closed(int error, Clock::time_point now) {
  if (cause_ != Cause::kNone) return {};
  const int code = error == EPIPE ? kSignalBase + SIGPIPE : 1;
  if (!released_) return end(Cause::kOutputClosed, code, SIGTERM, now + limits_.after_failure);
  cause_ = Cause::kOutputClosed;
  exit_code_ = code;
  return {};
}

JobState::Orders JobState::on_keeper_lost() {
  if (released_) return {};
  if (cause_ == Cause::kNone) {
    cause_ = Cause::kKeeperLost;
    exit_code_ = kSignalBase + SIGKILL;
  }
  return release();
}

JobState::Orders JobState::on_time(Clock::time_point now) {
  if (!deadline_ || now < *deadline_) return {};
  return release();
}

JobState::Orders JobState::end(Cause cause, int code, int signal, Clock::time_point deadline) {
  if (released_) return {};
  cut_short_ = true;
  cause_ = cause;
  exit_code_ = code;
  deadline_ = deadline;
  // SIGCONT, so that a stopped worker can act on the signal.
  return {.forward = {signal, SIGCONT}};
}

JobState::Orders JobState::release() {
  if (released_) return {};
  released_ = true;
  deadline_.reset();
  return {.release = true};
}

}  // namespace lockstep::control
