#include "control/launch/job_state.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace lockstep::control {
namespace {

bool asks_for_the_end(int signal) {
  constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  return std::find(kSignals.begin(), kSignals.end(), signal) != kSignals.end();
}

}  // namespace

std::optional<int> JobState::lost() const {
  const auto verdict = failure_ ? failure_ : blame_.verdict();
  return verdict ? verdict->lost : std::nullopt;
}

bool JobState::explained(const WorkerEnd& end) const {
  return end.rank == 0 && std::any_of(rules_.explained_codes.begin(), rules_.explained_codes.end(),
                                      [&](int code) { return end.exited_with(code); });
}

JobState::Orders JobState::on_ends(const std::vector<WorkerEnd>& together, Clock::time_point now) {
  live_ -= static_cast<int>(together.size());
  std::vector<WorkerEnd> ends = together;
  for (auto& end : ends) {
    if (!rules_.stopped_code || !end.exited_with(*rules_.stopped_code)) continue;
    end.value = 0;
    if (cause_ == Cause::kNone) exit_code_ = *rules_.stopped_code;
  }
  blame_.on_ends(ends);
  const Orders orders = judge(now);
  return live_ <= 0 ? release() : orders;
}

// Is the cause of the first failure known, or is it time to go on without?
JobState::Orders JobState::judge(Clock::time_point now) {
  const auto verdict = blame_.verdict();
  if (!verdict || cause_ != Cause::kNone) return {};
  if (!failed_at_) failed_at_ = now;
  const auto until = *failed_at_ + rules_.for_the_cause;
  if (!verdict->open || live_ <= 0 || now >= until || explained(verdict->cause))
    return end_for_failure(now);
  deadline_ = until;
  return {};
}

JobState::Orders JobState::end_for_failure(Clock::time_point now) {
  failure_ = blame_.verdict();
  const auto least = now + rules_.after_failure - rules_.for_the_cause;
  return end(Cause::kFailure, control::exit_code(failure_->cause), SIGTERM,
             std::max(*failed_at_ + rules_.after_failure, least));
}

JobState::Orders JobState::on_signal(int signal, Clock::time_point now) {
  if (released_) return {};
  if (!asks_for_the_end(signal)) return {.forward = {signal}};
  const bool hung_up = cause_ == Cause::kOutputClosed && signal == SIGHUP;
  if ((cause_ == Cause::kNone && !failed_at_) || hung_up)
    return end(Cause::kSignal, kSignalBase + signal, signal, now + rules_.grace);
  if (cause_ == Cause::kNone) end_for_failure(now);  // it was being judged
  if (signal == SIGINT) return release();
  return {.forward = {signal}};
}

JobState::Orders JobState::on_output_closed(int error, Clock::time_point now) {
  if (cause_ != Cause::kNone || failed_at_) return {};
  const int code = error == EPIPE ? kSignalBase + SIGPIPE : 1;
  if (!released_) return end(Cause::kOutputClosed, code, SIGTERM, now + rules_.grace);
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
  return cause_ == Cause::kNone ? judge(now) : release();
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
