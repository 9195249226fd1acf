#include "control/launch/hosts_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <tuple>

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
// Beyond --grace: from a signal to the end of the lifelines, and from there until the remote shells that are left are
// killed. The launchers there need it to end.
constexpr seconds kForTheEnd{2};
constexpr std::size_t kMostNamed = 8;

// "a", "a and b", "a, b and 5 more"
std::string listed(std::vector<std::string> names) {
  if (names.size() > kMostNamed) {
    const std::size_t more = names.size() - kMostNamed;
    names.resize(kMostNamed);
    names.push_back(fmt::format("{} more", more));
  }
  if (names.size() == 1) return names.front();
  const std::string last = std::move(names.back());
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

std::string shells_of(const std::vector<std::string>& names) {
  return fmt::format("the remote shell{} of {}", names.size() == 1 ? "" : "s", listed(names));
}

bool ends_the_job(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

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

HostsState::HostsState(std::vector<HostSpec> hosts, HostsRules rules, Clock::time_point now)
    : rules_(std::move(rules)),
      deadline_(now + std::chrono::duration_cast<Clock::duration>(rules_.to_begin)) {
  for (auto& spec : hosts) hosts_.push_back({.spec = std::move(spec), .end = {}});
}

bool HostsState::all_begun() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return host.begun; });
}

bool HostsState::all_ended() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const Host& host) { return host.end.has_value(); });
}

HostsState::Clock::duration HostsState::grace() const {
  if (!all_begun()) return {};
  return std::chrono::duration_cast<Clock::duration>(rules_.grace);
}

HostsState::Orders HostsState::on_end(const WorkerEnd& end_of_host, Clock::time_point now) {
  hosts_[static_cast<std::size_t>(end_of_host.rank)].end = end_of_host;
  if (rules_.elastic && end_of_host.failed() && end_of_host.rank != 0 && all_begun() &&
      cause_ == JobState::Cause::kNone && !succeeded_) {
    hosts_[static_cast<std::size_t>(end_of_host.rank)].left = true;
    return {};
  }
  if (end_of_host.failed() && (failed_.empty() || !hung_up_)) failed_.push_back(end_of_host);
  if (all_ended()) {
    deadline_.reset();
    released_ = true;
    return {.release = true};
  }
  if (cause_ != JobState::Cause::kNone) return {};
  if (!failed_.empty()) {
    cause_ = JobState::Cause::kFailure;
    deadline_ = now + kAfterFailure;
  } else if (!std::exchange(succeeded_, true)) {
    deadline_ = now + kAfterSuccess;
  }
  return {};
}

HostsState::Orders HostsState::on_signal(int signal, Clock::time_point now) {
  if (released_ || signal == SIGCONT) return {};
  if (!ends_the_job(signal)) return {.signal = signal};
  if (cause_ == JobState::Cause::kNone) {
    signal_ = signal;
    return end(JobState::Cause::kSignal, signal, now);
  }
  // The user waits: a shell that hangs is not waited for.
  rules_.grace = {};
  deadline_ = std::min(deadline_.value_or(now + kForTheEnd), now + kForTheEnd);
  return {.signal = signal};
}

HostsState::Orders HostsState::on_output_closed(int error, Clock::time_point now) {
  if (released_ || cause_ != JobState::Cause::kNone) return {};
  output_error_ = error;
  return end(JobState::Cause::kOutputClosed, SIGTERM, now);
}

// Node 0 may have no launcher yet that would pass the signal on, but every host notices the end of its lifeline.
HostsState::Orders HostsState::end(JobState::Cause cause, int signal, Clock::time_point now) {
  cause_ = cause;
  if (!all_begun()) return hang_up(now);
  deadline_ = now + grace() + kForTheEnd;
  return {.signal = signal};
}

HostsState::Orders HostsState::hang_up(Clock::time_point now) {
  // After a signal the workers have had their time.
  const bool had_time =
      cause_ == JobState::Cause::kSignal || cause_ == JobState::Cause::kOutputClosed;
  hung_up_ = true;
  deadline_ = now + kForTheEnd + (had_time ? Clock::duration{} : grace());
  return {.hang_up = true};
}

HostsState::Orders HostsState::on_time(Clock::time_point now) {
  if (!deadline_ || now < *deadline_ || released_) return {};
  if (cause_ == JobState::Cause::kNone && !succeeded_) {  // the time to begin is over
    deadline_.reset();
    if (all_begun()) return {};
    late_ = true;
    cause_ = JobState::Cause::kFailure;
  }
  if (!hung_up_) return hang_up(now);
  for (Host& host : hosts_) host.killed = !host.end;
  released_ = true;
  deadline_.reset();
  return {.release = true};
}

// A remote shell that a signal has killed says nothing of the launcher there.
bool HostsState::agreed() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [&](const Host& host) {
    return host.left || (host.end && host.end->exited_with(failed_.front().value));
  });
}

// A launcher that loses another one exits with a code, and its end may be noticed first.
const WorkerEnd& HostsState::cause() const {
  const auto weight = [this](const WorkerEnd& end) {
    return std::tuple(hosts_[static_cast<std::size_t>(end.rank)].begun,
                      end.how == WorkerEnd::How::kExited, !end.exited_with(kShellFailed));
  };
  return *std::min_element(failed_.begin(), failed_.end(), [&](const auto& one, const auto& other) {
    return weight(one) < weight(other);
  });
}

int HostsState::failure_code() const {
  if (late_ || failed_.empty()) return late_ ? 1 : 0;
  const int code = exit_code(cause());
  const bool needs_something = code == kNotFound || code == kCannotExecute;
  const bool begun = hosts_[static_cast<std::size_t>(cause().rank)].begun;
  const bool of_the_shell = !begun || (code == kShellFailed && !agreed());
  return (of_the_shell && !needs_something) || code == kNothingRan ? 1 : code;
}

NodeVerdict HostsState::verdict() const {
  NodeVerdict verdict;
  verdict.cause = static_cast<std::uint8_t>(cause_);
  verdict.cut_short = cause_ != JobState::Cause::kNone;
  verdict.code = failure_code();
  if (cause_ == JobState::Cause::kSignal) verdict.code = kSignalBase + signal_;
  if (cause_ == JobState::Cause::kOutputClosed) verdict.code = output_closed_code(output_error_);
  verdict.what = fmt::format("{}", fmt::join(what_happened(), "\nlockstep: "));
  return verdict;
}

// One line for each cause. Launchers that have met have told the user why the job ended. Here only a host that took no
// part is named, and a remote shell that ended by itself, or not at all.
std::vector<std::string> HostsState::what_happened() const {
  using Names = std::vector<std::string>;
  std::vector<std::string> lines;
  const bool asked = cause_ == JobState::Cause::kSignal || cause_ == JobState::Cause::kOutputClosed;
  std::map<std::tuple<WorkerEnd::How, int>, Names> silent;
  std::vector<WorkerEnd> failed = failed_;
  std::sort(failed.begin(), failed.end(),
            [](const auto& one, const auto& other) { return one.rank < other.rank; });
  for (const WorkerEnd& end : failed) {
    const Host& host = hosts_[static_cast<std::size_t>(end.rank)];
    if (!host.begun && !asked && !late_) silent[{end.how, end.value}].push_back(host.spec.name);
  }
  lines.reserve(silent.size());
  for (const auto& [how, names] : silent)
    lines.push_back(never_begun({0, std::get<0>(how), std::get<1>(how)}, names));
  if (const Names names = deaf_shells(); !names.empty() && !asked)
    lines.push_back(fmt::format(
        "{} ended with code 0, and did not pass on how `lockstep` ended there: whether the job "
        "ended well is not known; use a shell that passes exit codes on",
        shells_of(names)));
  std::map<bool, Names> killed;  // by whether the launcher there has begun
  for (const Host& host : hosts_) {
    if (host.killed) killed[host.begun || asked].push_back(host.spec.name);
  }
  if (killed.contains(false)) lines.push_back(not_begun_in_time(killed[false]));
  if (lines.empty() && !failed_.empty() && !asked && !agreed())
    lines.push_back(ended_before_others(cause()));
  if (killed.contains(true)) lines.push_back(killed_shells(killed[true]));
  return lines;
}

// A launcher began there, and its exit code got lost.
std::vector<std::string> HostsState::deaf_shells() const {
  std::vector<std::string> names;
  for (const Host& host : hosts_) {
    if (host.begun && !host.left && host.end && host.end->exited_with(kNothingRan))
      names.push_back(host.spec.name);
  }
  return names;
}

std::string HostsState::ended_before_others(const WorkerEnd& end) const {
  const std::string& host = hosts_[static_cast<std::size_t>(end.rank)].spec.name;
  if (end.exited_with(kShellFailed)) {
    return fmt::format(
        "the connection to {} was lost (code 255); everything was ended. Its network or ssh server "
        "may say why",
        host);
  }
  const bool launcher = end.how == WorkerEnd::How::kExited;
  return fmt::format("the {} {} {}{}; everything was ended",
                     launcher ? "launcher on" : "remote shell of", host, describe(end),
                     launcher ? " before the others" : "");
}

std::string HostsState::never_begun(const WorkerEnd& end,
                                    const std::vector<std::string>& names) const {
  const std::string attempt = fmt::format("`{} {} true`", rules_.shell, names.front());
  if (end.how == WorkerEnd::How::kNotStarted) {
    return fmt::format("cannot start the remote shell: {}; name another with --ssh",
                       std::strerror(end.value));
  }
  if (end.exited_with(kNothingRan)) {
    return fmt::format(
        "{} ended without starting `lockstep` there (code 0); does {} do nothing else, and is "
        "--remote-lockstep right?",
        shells_of(names), attempt);
  }
  if (end.exited_with(kShellFailed)) {
    return fmt::format("{} could not be reached (code 255); {} must work without a password",
                       listed(names), attempt);
  }
  if (end.exited_with(kNotFound) || end.exited_with(kCannotExecute)) {
    return fmt::format(
        "`lockstep` could not be started on {} (code {}): the same directory, `lockstep` and "
        "program must be there; --remote-lockstep names the path of `lockstep`",
        listed(names), end.value);
  }
  return fmt::format(
      "{} {} before `lockstep` began there; see whether {} works, and whether this directory and "
      "`lockstep` are there",
      shells_of(names), describe(end), attempt);
}

std::string HostsState::not_begun_in_time(const std::vector<std::string>& names) const {
  return fmt::format(
      "{} {} not started `lockstep` in time and {} killed; `{} {} true` must work without a "
      "password; --timeout allows more time",
      shells_of(names), names.size() == 1 ? "has" : "have", names.size() == 1 ? "was" : "were",
      rules_.shell, names.front());
}

std::string HostsState::killed_shells(const std::vector<std::string>& names) const {
  return fmt::format(
      "{} did not end and {} killed; processes may still run there: see `{} {} ps -ef`",
      shells_of(names), names.size() == 1 ? "was" : "were", rules_.shell, names.front());
}

}  // namespace lockstep::control
