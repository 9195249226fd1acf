#include "control/launch/restarts.h"

#include <algorithm>

namespace lockstep::control {

std::optional<Restarts::Clock::time_point> Restarts::on_end(int place, Clock::time_point now) {
  Place& its = places_[place];
  const bool soon = its.started && now - *its.started < kSoon;
  its.deaths = soon ? its.deaths + 1 : 0;
  Clock::duration wait{};
  for (int death = 1; death < its.deaths && wait < kLongestWait; ++death)
    wait = std::clamp<Clock::duration>(2 * wait, kFirstWait, kLongestWait);
  const auto when = now + wait;
  granted_.erase(granted_.begin(), granted_.upper_bound(now - kWindow));
  const auto within = std::distance(granted_.upper_bound(when - kWindow), granted_.end());
  if (within >= most_) return std::nullopt;
  granted_.insert(when);
  waiting_[place] = when;
  return when;
}

std::vector<int> Restarts::due(Clock::time_point now) {
  std::vector<int> places;
  for (const auto& [place, when] : waiting_) {
    if (when <= now) places.push_back(place);
  }
  for (const int place : places) waiting_.erase(place);
  return places;
}

std::optional<Restarts::Clock::time_point> Restarts::next() const {
  std::optional<Clock::time_point> first;
  for (const auto& [place, when] : waiting_) first = std::min(first.value_or(when), when);
  return first;
}

void Departures::on_ended_well(int place) {
  if (members_.erase(place) == 0) return;
  finishing_ = true;
  restarts_.drop();
}

Departures::Outcome Departures::on_left(int place, int live, Clock::time_point now) {
  const bool member = members_.erase(place) > 0;
  const auto start = finishing_ ? std::nullopt : restarts_.on_end(place, now);
  // A newcomer cannot finish what the members have begun, and nobody needs it for that.
  const int others = finishing_ ? static_cast<int>(members_.size()) : live + restarts_.waiting();
  const bool needed = member || !finishing_;
  if (!start && needed && others < min_workers_) return {};
  ++left_;
  if (start) return {After::kReplaced, *start - now};
  return {finishing_ ? After::kFinishing : After::kNoRestart};
}

std::vector<int> Departures::due(Clock::time_point now) {
  std::vector<int> places = restarts_.due(now);
  for (const int place : places) expelled_.erase(place);
  replaced_ += static_cast<int>(places.size());
  return places;
}

}  // namespace lockstep::control
