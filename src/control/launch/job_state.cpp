#include "control/launch/job_state.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "control/launch/program.h"

namespace lockstep::control {
namespace {

const char* hint(int signal) {
  if (signal == SIGKILL) return "; if you did not do it, memory may have run out: see `dmesg`";
  if (signal == SIGILL) return "; built for another processor?";
  return "";
}

bool asks_for_the_end(int signal) {
  constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  return std::find(kSignals.begin(), kSignals.end(), signal) != kSignals.end();
}

}  // namespace

int output_closed_code(int error) {
  return error == EPIPE ? kSignalBase + SIGPIPE : 1;
}

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

std::string describe(const LeftWorker& left, int max_restarts, double waited_s) {
  const WorkerEnd& end = left.end;
  const char* name = sigabbrev_np(end.value);
  std::string text = fmt::format("rank {} ", end.rank);
  if (left.expelled) {
    text += fmt::format("was ended: others had waited {:g} s for it", waited_s);
  } else if (end.how == WorkerEnd::How::kKilled && name != nullptr) {
    text += fmt::format("was killed by SIG{}", name);
  } else if (end.how == WorkerEnd::How::kExited) {
    text += fmt::format("could not go on and exited with code {}", end.value);
  } else {
    text += describe(end);
  }
  const int live = left.live;
  const std::string others = live == 1 ? "1 worker goes on" : fmt::format("{} workers go on", live);
  const std::string without = live == 0 ? "" : fmt::format("; {} without it", others);
  switch (left.outcome.after) {
    case Departures::After::kReplaced: {
      const auto wait = std::chrono::duration<double>(left.outcome.wait).count();
      text += live == 0 ? "; a replacement starts"
                        : fmt::format("; {}, and a replacement starts", others);
      return wait >= 1 ? fmt::format("{} in {:g} s", text, wait) : text;
    }
    case Departures::After::kNoRestart: {
      const auto wait = std::chrono::ceil<std::chrono::seconds>(left.outcome.wait).count();
      text += live == 0 ? "; its place stays empty" : without;
      text += fmt::format(": no restart is left (--max-restarts {})", max_restarts);
      return wait > 0 ? fmt::format("{} for {} s", text, wait) : text;
    }
    case Departures::After::kFinishing:
      return text + without;
    case Departures::After::kClosed:
      return fmt::format("{}{}: nobody can join a later loop of a program", text, without);
    case Departures::After::kPastEnd:
      return fmt::format("{}; it had reached the end of the job", text);
    case Departures::After::kRefused:
      return fmt::format("rank {} could not join and {}{}", end.rank, describe(end), without);
    case Departures::After::kResized:
      return fmt::format("rank {} has left: the job is to have fewer workers", end.rank);
    case Departures::After::kHostLeft:
      return fmt::format("rank {} has left with its host", end.rank);
    case Departures::After::kTooFew:
      break;
  }
  return text;
}

void Blame::on_loss(int rank, std::optional<int> whom) {
  losses_.erase(rank);
  if (whom) losses_.emplace(rank, *whom);
}

void Blame::on_ends(const std::vector<WorkerEnd>& together) {
  for (const auto& end : together) ends_.insert_or_assign(end.rank, end);
  if (first_) return;
  const auto weight = [this](const WorkerEnd& end) {
    return std::tuple(end.how != WorkerEnd::How::kExited, !lost_by(end.rank).has_value());
  };
  for (const auto& end : together) {
    if (end.failed() && (!first_ || weight(end) > weight(*first_))) first_ = end;
  }
}

std::optional<Blame::Verdict> Blame::verdict() const {
  if (!first_) return std::nullopt;
  std::set<int> trail{first_->rank};
  std::optional<int> last;
  for (auto next = lost_by(first_->rank); next; next = lost_by(*next)) {
    last = next;
    // A circle: workers lost each other. Then the first failure counts.
    if (!trail.insert(*next).second) return Verdict{*first_, lost_by(first_->rank)};
  }
  if (!last) return Verdict{.cause = *first_, .lost = {}};
  const auto end = end_of(*last);
  if (end && end->failed()) return Verdict{.cause = *end, .lost = {}};
  return Verdict{*first_, last, !end};
}

std::optional<WorkerEnd> Blame::end_of(int rank) const {
  const auto found = ends_.find(rank);
  return found == ends_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int> Blame::lost_by(int rank) const {
  const auto found = losses_.find(rank);
  return found == losses_.end() ? std::nullopt : std::optional(found->second);
}

JobState::JobState(int workers, EndRules rules) : live_(workers), rules_(std::move(rules)) {
  if (rules_.elastic) departures_.emplace(*rules_.elastic, workers);
}

std::optional<JobState::Clock::time_point> JobState::deadline() const {
  if (!departures_ || !running()) return deadline_;
  std::optional<Clock::time_point> first = departures_->next();
  const auto also = [&](Clock::time_point when) { first = std::min(first.value_or(when), when); };
  if (held_.until) also(*held_.until);
  for (const Leaving& host : leaving_) also(host.until);
  return first;
}

std::optional<int> JobState::lost() const {
  if (!held_.ends.empty()) return blame_.lost_by(held_.ends.front().rank);
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
  Orders orders;
  if (departures_ && running()) {
    ends.insert(ends.begin(), held_.ends.begin(), held_.ends.end());
    hold_back(ends, now);
    ends = depart(ends, orders, now);
  }
  blame_.on_ends(ends);
  orders.forward = judge(now).forward;
  if (!running()) orders.left.clear();  // the job does not go on
  if (over()) return {.forward = {}, .release = release().release, .left = std::move(orders.left)};
  orders.start = restart(now);
  return orders;
}

// Nobody lives or comes back; or only workers live that came too late to join.
bool JobState::over() const {
  if (!departures_ || !running()) return live_ <= 0;
  return departures_->done() || (live_ <= 0 && !departures_->waiting() && held_.ends.empty());
}

// Peers of a worker that is killed may end before its own end is known.
void JobState::hold_back(std::vector<WorkerEnd>& ends, Clock::time_point now) {
  held_.ends.clear();
  const auto is_known = [&](int rank) {
    return blame_.end_of(rank) || std::any_of(ends.begin(), ends.end(),
                                              [rank](const auto& end) { return end.rank == rank; });
  };
  const auto waits = [&](const WorkerEnd& end) {
    const auto lost = blame_.lost_by(end.rank);
    return end.failed() && end.how == WorkerEnd::How::kExited && lost && !is_known(*lost);
  };
  const auto held = std::stable_partition(ends.begin(), ends.end(),
                                          [&](const WorkerEnd& end) { return !waits(end); });
  held_.ends.assign(held, ends.end());
  ends.erase(held, ends.end());
  if (held_.ends.empty()) {
    held_.until.reset();
  } else if (!held_.until) {
    held_.until = now + std::chrono::duration_cast<Clock::duration>(rules_.for_the_cause);
  }
}

// Whether the job goes on although this worker has failed. One that cannot go on without a worker that has left leaves,
// too: it was about to join, or its program cannot repeat a step.
bool JobState::leaves(const WorkerEnd& end, const std::vector<WorkerEnd>& together) const {
  if (end.how == WorkerEnd::How::kKilled || expelled(end.rank)) return true;
  if (end.how == WorkerEnd::How::kNotStarted) return departures_->later(end.rank);
  return left_with_another(end, together) || departures_->newcomer(end.rank);
}

bool JobState::left_with_another(const WorkerEnd& end,
                                 const std::vector<WorkerEnd>& together) const {
  const auto lost = blame_.lost_by(end.rank);
  if (!lost) return false;
  const auto before = blame_.end_of(*lost);
  return (before && before->failed()) ||
         std::any_of(together.begin(), together.end(), [&](const WorkerEnd& other) {
           return other.rank == *lost && other.how == WorkerEnd::How::kKilled;
         });
}

// The ends that are left to be judged. If one of them is a failure of the worker's own, the job ends; then whom a signal
// killed at the same moment may be the cause.
std::vector<WorkerEnd> JobState::depart(std::vector<WorkerEnd> together, Orders& orders,
                                        Clock::time_point now) {
  // First those that are to come back: then the others are not the last.
  std::stable_partition(together.begin(), together.end(),
                        [&](const WorkerEnd& end) { return departures_->wants(end.rank); });
  for (const auto& end : together) {
    if (end.failed() && !leaves(end, together)) return together;
    if (!end.failed()) departures_->on_ended_well(end.rank);
  }
  std::vector<WorkerEnd> rest;
  for (const auto& end : together) {
    if (!end.failed()) {
      rest.push_back(end);
      continue;
    }
    const bool expelled_one = expelled(end.rank);
    const bool refused =
        end.how == WorkerEnd::How::kExited && !expelled_one && !left_with_another(end, together);
    const auto outcome = refused ? departures_->on_refused(end.rank, live_)
                                 : departures_->on_left(end.rank, live_, now);
    if (outcome.after == Departures::After::kTooFew) {
      rest.push_back(end);
      continue;
    }
    blame_.on_left(end);
    orders.left.push_back({end, expelled_one, 0, outcome});
  }
  for (LeftWorker& one : orders.left) one.live = going_on();
  if (const auto leader = departures_->leader_that_left(); leader && departures_->finishing()) {
    // The others go home, and do not know of it.
    if (const auto end = blame_.end_of(*leader)) rest.push_back(*end);
  }
  return rest;
}

int JobState::going_on() const {
  if (!departures_ || !departures_->formed()) return live_;
  std::set<int> gone;
  for (const auto& end : held_.ends) gone.insert(end.rank);
  return departures_->training(gone);
}

std::vector<int> JobState::restart(Clock::time_point now) {
  if (!departures_ || !running()) return {};
  std::vector<int> places = departures_->due(now);
  live_ += static_cast<int>(places.size());
  return places;
}

// Workers of hosts whose time to leave is over.
std::vector<int> JobState::overdue(Clock::time_point now) {
  std::vector<int> ranks;
  std::erase_if(leaving_, [&](const Leaving& host) {
    if (host.until > now) return false;
    ranks.insert(ranks.end(), host.ranks.begin(), host.ranks.end());
    return true;
  });
  return ranks;
}

void JobState::on_started(int rank, Clock::time_point now) {
  if (departures_) departures_->on_started(rank, now);
}

void JobState::on_formed(const std::vector<int>& ranks) {
  if (!departures_ || !running()) return;
  departures_->on_formed(ranks);
  for (const int rank : ranks) blame_.on_replaced(rank);
}

JobState::Orders JobState::on_expelled(int rank) {
  if (!departures_ || !running()) return {};
  departures_->on_expelled(rank);
  return {.kill = {rank}};
}

void JobState::on_goodbye(int rank) {
  if (departures_) departures_->on_goodbye(rank);
}

JobState::Orders JobState::on_closed() {
  if (!departures_ || !running()) return {};
  return {.kill = departures_->on_closed()};
}

JobState::Resized JobState::on_resize(int workers, Clock::time_point now) {
  if (!departures_)
    return {"its number of workers is fixed; start it with -n MIN:MAX, as in -n 2:8", {}};
  if (!running()) return {"it is ending", {}};
  if (auto why = departures_->objection(workers)) return {std::move(*why), {}};
  Orders orders;
  orders.kill = departures_->on_resize(workers, now);
  orders.places = departures_->end();
  orders.start = restart(now);
  return {"", std::move(orders)};
}

JobState::Orders JobState::on_dismissed(int rank) {
  if (!departures_ || !running()) return {};
  departures_->on_dismissed(rank);
  return {.kill = {rank}};
}

std::optional<int> JobState::most() const {
  return departures_ ? std::optional(departures_->most()) : std::nullopt;
}

std::optional<int> JobState::wanted() const {
  return departures_ ? std::optional(departures_->wanted()) : std::nullopt;
}

// Ends the job if the cause of the first failure is known, or if the time to wait for it is over.
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
  // The time counts from the failure, but workers that are told late to end still have some of it.
  const auto least = now + rules_.after_failure - rules_.for_the_cause;
  return end(Cause::kFailure, control::exit_code(failure_->cause), SIGTERM,
             std::max(*failed_at_ + rules_.after_failure, least));
}

JobState::Orders JobState::on_signal(int signal, Clock::time_point now) {
  if (ending_.released) return {};
  if (!asks_for_the_end(signal)) return {.forward = {signal}};
  const bool hung_up = cause_ == Cause::kOutputClosed && signal == SIGHUP;
  if ((cause_ == Cause::kNone && !failed_at_) || hung_up) {
    const Orders orders = end(Cause::kSignal, kSignalBase + signal, signal, now + rules_.grace);
    return live_ <= 0 ? release() : orders;  // nobody, while a restart waits
  }
  if (cause_ == Cause::kNone) end_for_failure(now);  // it was being judged
  if (signal == SIGINT) return release();
  return {.forward = {signal}};
}

JobState::Orders JobState::on_output_closed(int error, Clock::time_point now) {
  if (cause_ != Cause::kNone || failed_at_) return {};
  const int code = output_closed_code(error);
  // EIO: the terminal has gone. Its SIGHUP is on the way here, and workers get theirs now: what they
  // do at a hangup must not depend on which of the two comes first.
  const int signal = error == EIO && rules_.hangs_up ? SIGHUP : SIGTERM;
  if (!ending_.released) {
    const Orders orders = end(Cause::kOutputClosed, code, signal, now + rules_.grace);
    return live_ <= 0 ? release() : orders;
  }
  cause_ = Cause::kOutputClosed;
  exit_code_ = code;
  return {};
}

JobState::Orders JobState::on_keeper_lost() {
  if (ending_.released) return {};
  if (cause_ == Cause::kNone) {
    cause_ = Cause::kKeeperLost;
    exit_code_ = kSignalBase + SIGKILL;
  }
  return release();
}

// Workers of other hosts that have lost one of these may have failed just before. They are no cause, so a failure that
// is still being judged does not count. With elastic rules the others go on, and nothing is started there any more.
JobState::Orders JobState::on_host_lost(const std::vector<int>& ranks, Clock::time_point now) {
  std::vector<int> lived;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(lived),
               [this](int rank) { return !blame_.end_of(rank); });
  live_ -= static_cast<int>(lived.size());
  Orders orders;
  if (departures_ && running() && departures_->on_host_lost(ranks, live_)) {
    for (const int rank : lived) blame_.on_left({rank, WorkerEnd::How::kKilled, SIGKILL});
    return over() ? release() : orders;
  }
  if (cause_ == Cause::kNone)
    orders = end(Cause::kHostLost, 1, SIGTERM, now + rules_.after_failure);
  return live_ <= 0 ? release() : orders;
}

// Its workers have the time of a job that is told to end. After that they are killed, in whatever they are.
std::optional<JobState::Orders> JobState::on_host_leaves(const std::vector<int>& ranks,
                                                         Clock::time_point now) {
  if (!departures_ || !running()) return std::nullopt;
  auto kill = departures_->on_host_leaves(ranks, live_);
  if (!kill) return std::nullopt;
  leaving_.push_back({ranks, now + std::chrono::duration_cast<Clock::duration>(rules_.grace)});
  return Orders{.forward = {}, .kill = std::move(*kill), .dismiss = ranks};
}

std::string JobState::objection_to_host() const {
  if (!departures_) return "its workers are fixed; start it with --max-restarts";
  if (!running()) return "it is ending";
  return departures_->objection(departures_->wanted()).value_or("");
}

void JobState::on_host_joined(const std::vector<int>& ranks) {
  live_ += static_cast<int>(ranks.size());
  departures_->on_host_joined(ranks);
}

JobState::Orders JobState::on_time(Clock::time_point now) {
  if (running() && held_.until && now >= *held_.until) {  // it lives on: they failed by themselves
    Orders orders;
    const auto ends = depart(std::exchange(held_, {}).ends, orders, now);
    if (ends.empty()) {
      orders.start = restart(now);
      return orders;
    }
    failed_at_ = now - std::chrono::duration_cast<Clock::duration>(rules_.for_the_cause);
    blame_.on_ends(ends);
    return judge(now);
  }
  if (running()) return {.start = restart(now), .kill = overdue(now)};
  if (!deadline_ || now < *deadline_) return {};
  return cause_ == Cause::kNone ? judge(now) : release();
}

JobState::Orders JobState::end(Cause cause, int code, int signal, Clock::time_point deadline) {
  if (ending_.released) return {};
  ending_.cut_short = true;
  cause_ = cause;
  exit_code_ = code;
  deadline_ = deadline;
  if (std::exchange(ending_.told, signal) == signal) return {};  // no worker is told twice
  // SIGCONT, so that a stopped worker can act on the signal.
  return {.forward = {signal, SIGCONT}};
}

JobState::Orders JobState::release() {
  if (ending_.released) return {};
  ending_.released = true;
  deadline_.reset();
  return {.release = true};
}

}  // namespace lockstep::control
