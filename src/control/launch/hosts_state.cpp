#include "control/launch/hosts_state.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/environment.h"
#include "control/launch/options.h"
#include "control/launch/program.h"

namespace lockstep::control {
namespace {

using std::chrono::seconds;

constexpr int kShellFailed = 255;  // of ssh itself
// From the first launcher that ended to the end of the lifelines: they end each other sooner.
constexpr seconds kAfterFailure{2};
constexpr seconds kAfterSuccess{60};  // some wait for slow readers of their output
// From the end of the lifelines, or of --grace, until what is left is killed.
constexpr seconds kForTheEnd{20};  // after --grace

HostSpec parse_host(const std::string& text, int workers) {
  const auto colon = text.rfind(':');
  const auto bracket = text.rfind(']');
  const bool counted =
      colon != std::string::npos && (bracket == std::string::npos || bracket < colon);
  HostSpec host{text.substr(0, counted ? colon : text.size()), workers};
  if (counted) {
    const auto number = base::parse_number(text.substr(colon + 1));
    host.workers = static_cast<int>(number.value_or(0) > kMostWorkers ? 0 : number.value_or(0));
  }
  // A name that begins with a dash would be an option of the remote shell.
  const bool name = !host.name.empty() && host.name.front() != '-' &&
                    host.name.find_first_of(" \t\n'\"") == std::string::npos;
  if (name && host.workers > 0) return host;
  throw BadInput(fmt::format(
      "--hosts: \"{}\" is not HOST:WORKERS; write for example --hosts node0:4,node1:4", text));
}

}  // namespace

std::vector<HostSpec> parse_hosts(const std::string& list, int workers) {
  std::vector<HostSpec> hosts;
  for (std::size_t at = 0; at <= list.size();) {
    const auto comma = std::min(list.find(',', at), list.size());
    hosts.push_back(parse_host(list.substr(at, comma - at), workers));
    at = comma + 1;
  }
  if (hosts.size() > static_cast<std::size_t>(kMostHosts))
    throw BadInput(fmt::format("--hosts names {} hosts; the most is {}", hosts.size(), kMostHosts));
  return hosts;
}

int code_for_coordinator(int code) {
  if (code == kDoneThere) return 1;
  return code == 0 ? kDoneThere : code;
}

WorkerEnd end_of_shell(WorkerEnd end) {
  if (end.how != WorkerEnd::How::kExited) return end;
  if (end.value == kDoneThere) {
    end.value = 0;
  } else if (end.value == 0) {
    end.value = kNothingRan;
  }
  return end;
}

HostsState::HostsState(std::vector<HostSpec> hosts, std::chrono::nanoseconds grace)
    : hosts_(std::move(hosts)),
      for_the_end_(std::chrono::duration_cast<Clock::duration>(grace) + kForTheEnd),
      ends_(hosts_.size()) {}

bool HostsState::all_ended() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) { return end.has_value(); });
}

HostsState::Orders HostsState::on_end(const WorkerEnd& end_of_host, Clock::time_point now) {
  ends_[static_cast<std::size_t>(end_of_host.rank)] = end_of_host;
  if (end_of_host.failed() && !first_) first_ = end_of_host;
  if (all_ended()) {
    deadline_.reset();
    released_ = true;
    return {.release = true};
  }
  if (cause_ != JobState::Cause::kNone) return {};
  if (!first_) {
    if (!deadline_) deadline_ = now + kAfterSuccess;
    return {};
  }
  return end(JobState::Cause::kFailure, {}, now + kAfterFailure);
}

HostsState::Orders HostsState::on_signal(int signal, Clock::time_point now) {
  const bool ends = signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  if (released_ || signal == SIGCONT) return {};
  if (!ends) return {.signal = signal};
  if (cause_ != JobState::Cause::kNone) {
    for_the_end_ = kAfterFailure;  // the user waits: a shell that hangs is not waited for
    deadline_ = std::min(deadline_.value_or(now + kAfterFailure), now + kAfterFailure);
    return {.signal = signal};
  }
  signal_ = signal;
  return end(JobState::Cause::kSignal, {.signal = signal}, now + for_the_end_);
}

HostsState::Orders HostsState::on_output_closed(int error, Clock::time_point now) {
  if (released_ || cause_ != JobState::Cause::kNone) return {};
  output_error_ = error;
  return end(JobState::Cause::kOutputClosed, {.signal = SIGTERM}, now + for_the_end_);
}

HostsState::Orders HostsState::on_time(Clock::time_point now) {
  if (!deadline_ || now < *deadline_ || released_) return {};
  if (!hung_up_) {
    hung_up_ = true;
    deadline_ = now + for_the_end_;
    return {.hang_up = true};
  }
  released_ = true;
  deadline_.reset();
  return {.release = true};
}

HostsState::Orders HostsState::end(JobState::Cause cause, Orders orders,
                                   Clock::time_point deadline) {
  cause_ = cause;
  deadline_ = deadline;
  return orders;
}

// Launchers that have met have told the user why the job ended. Here only a host that took no part is named.
NodeVerdict HostsState::verdict() const {
  NodeVerdict verdict;
  verdict.cause = static_cast<std::uint8_t>(cause_);
  verdict.cut_short = cause_ != JobState::Cause::kNone;
  if (cause_ == JobState::Cause::kSignal) verdict.code = kSignalBase + signal_;
  if (cause_ == JobState::Cause::kOutputClosed) verdict.code = output_closed_code(output_error_);
  if (!first_ || verdict.code != 0) return verdict;
  verdict.code = exit_code(*first_);
  const bool agreed = std::all_of(ends_.begin(), ends_.end(), [&](const auto& end) {
    return end && exit_code(*end) == verdict.code;
  });
  const std::string& host = hosts_[static_cast<std::size_t>(first_->rank)].name;
  if (verdict.code == kNothingRan) {
    verdict.code = 1;
    verdict.what = fmt::format(
        "the remote shell of {} ended without starting `lockstep` there; does `ssh {} true` do "
        "nothing else, and is --remote-lockstep right?",
        host, host);
  } else if (first_->how == WorkerEnd::How::kNotStarted) {
    verdict.what = fmt::format("cannot start the remote shell: {}; name another with --ssh",
                               std::strerror(first_->value));
  } else if (verdict.code == kShellFailed) {
    if (!agreed) verdict.code = 1;
    verdict.what = fmt::format(
        "{} could not be reached, or its connection was lost; `ssh {} true` must work without a "
        "password",
        host, host);
  } else if (verdict.code == kNotFound || verdict.code == kCannotExecute) {
    verdict.what = fmt::format(
        "{} has not what is needed (code {}): the same directory, `lockstep` and program must be "
        "there; --remote-lockstep names the path of `lockstep`",
        host, verdict.code);
  } else if (!agreed) {
    verdict.what = fmt::format("the launcher on {} {} before the others; everything was ended",
                               host, describe(*first_));
  }
  return verdict;
}

}  // namespace lockstep::control
