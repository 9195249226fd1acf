#include "control/launch/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep::control {
namespace {

JobEvent::Kind kind_of(const LeftWorker& left) {
  using Kind = JobEvent::Kind;
  if (left.expelled) return Kind::kHung;
  if (left.outcome.after == Departures::After::kResized) return Kind::kLeft;
  if (left.outcome.after == Departures::After::kRefused) return Kind::kRefused;
  switch (left.end.how) {
    case WorkerEnd::How::kExited:
      return Kind::kExited;
    case WorkerEnd::How::kKilled:
      return Kind::kKilled;
    case WorkerEnd::How::kNotStarted:
      return Kind::kNotStarted;
  }
  return Kind::kExited;
}

}  // namespace

JobEvent& JobEvents::add(JobEvent::Kind kind, std::optional<int> worker, std::string text,
                         Clock::time_point now) {
  JobEvent event;
  event.kind = kind;
  event.at_s = std::chrono::duration<double>(now - began_).count();
  event.worker = worker;
  if (worker) event.host = map_.shares[static_cast<std::size_t>(map_.node_of(*worker))].host;
  event.text = std::move(text);
  return list_.emplace_back(std::move(event));
}

double JobEvents::ms_since(const JobEvent& event, Clock::time_point now) const {
  return std::chrono::duration<double, std::milli>(now - began_).count() - 1000 * event.at_s;
}

void JobEvents::on_started(int worker, Clock::time_point now) {
  started_[worker] = now;
  members_.erase(worker);
}

void JobEvents::on_expelled(int worker, double waited_s, Clock::time_point now) {
  expelled_[worker] = {now, waited_s};
}

void JobEvents::on_left(const LeftWorker& left, std::string text, Clock::time_point now) {
  const int worker = left.end.rank;
  const auto expelled = expelled_.extract(worker);
  const bool hung = left.expelled && !expelled.empty();
  JobEvent& event = add(kind_of(left), worker, std::move(text), hung ? expelled.mapped().at : now);
  event.value = left.end.value;
  if (hung) event.waited_s = expelled.mapped().waited_s;
}

void JobEvents::on_host_gone(int node, HostIs how, std::string text, Clock::time_point now) {
  const auto kind = how == HostIs::kLost ? JobEvent::Kind::kHostLost : JobEvent::Kind::kHostLeft;
  add(kind, std::nullopt, std::move(text), now).host =
      map_.shares[static_cast<std::size_t>(node)].host;
}

void JobEvents::on_resized(int workers, std::string text, Clock::time_point now) {
  add(JobEvent::Kind::kResized, std::nullopt, std::move(text), now).value = workers;
}

void JobEvents::on_formed(std::uint64_t generation, const std::vector<int>& workers,
                          Clock::time_point now) {
  for (auto& event : list_) {
    if (event.generation) continue;
    event.generation = generation;
    event.formed_ms = ms_since(event, now);
  }
  const auto before = std::exchange(members_, {workers.begin(), workers.end()});
  if (std::exchange(generation_, generation) == 0) return;
  const auto new_here = [&](int worker) { return !before.contains(worker); };
  if (std::all_of(workers.begin(), workers.end(), new_here)) {
    add(JobEvent::Kind::kBeganAgain, std::nullopt, "nobody was left of those that trained", now)
        .generation = generation;
    return;
  }
  for (const int worker : workers) {
    if (!new_here(worker)) continue;
    JobEvent& event =
        add(JobEvent::Kind::kJoined, worker, fmt::format("rank {} has joined", worker), now);
    event.generation = generation;
    if (const auto start = started_.find(worker); start != started_.end())
      event.starting_ms = std::chrono::duration<double, std::milli>(now - start->second).count();
  }
}

void JobEvents::on_first_phase(Clock::time_point when) {
  for (auto& event : list_) {
    if (event.generation == generation_) event.first_phase_ms = ms_since(event, when);
  }
}

void JobEvents::on_ending(Clock::time_point now) {
  if (!ending_) ending_ = now;
}

void JobEvents::finish(std::optional<int> worker, std::string text) {
  if (ending_) add(JobEvent::Kind::kEnded, worker, std::move(text), *ending_);
}

void FirstPhase::begin(int worker, std::uint64_t phases, Clock::time_point now) {
  worker_ = worker;
  before_ = phases;
  formed_ = now;
  done_.reset();
}

FirstPhase::Clock::duration FirstPhase::pause(Clock::time_point now) const {
  return std::max<Clock::duration>(kLeastPause, (now - formed_) / kPartOfTime);
}

std::optional<FirstPhase::Clock::time_point> FirstPhase::look(const Said& said,
                                                              Clock::time_point now) {
  if (!worker_ || said.phases <= before_) return std::nullopt;
  const bool next = said.phases > before_ + 1;
  if (!done_ && (next || said.doing == Doing::kElse)) done_ = now;
  if (!next) return std::nullopt;
  return end_well();
}

std::optional<FirstPhase::Clock::time_point> FirstPhase::end_well() {
  if (!worker_) return std::nullopt;
  worker_.reset();
  return done_;
}

}  // namespace lockstep::control
