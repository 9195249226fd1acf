#include "control/launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::control {

std::optional<Restarts::Grant> Restarts::on_end(int place, Clock::time_point now) {
  if (most_ <= 0) return std::nullopt;
  Place& its = places_[place];
  const bool soon = its.started && now - *its.started < kSoon;
  its.deaths = soon ? its.deaths + 1 : 0;
  Clock::duration wait{};
  for (int death = 1; death < its.deaths && wait < kLongestWait; ++death)
    wait = std::clamp<Clock::duration>(2 * wait, kFirstWait, kLongestWait);
  Grant grant{now + std::max(wait, pause_)};
  granted_.erase(granted_.begin(), granted_.upper_bound(now - kWindow));
  // Of any `most_` restarts in a row, the next one comes a window after the first.
  if (granted_.size() >= static_cast<std::size_t>(most_)) {
    const auto free = *std::prev(granted_.end(), most_) + kWindow;
    grant.left = free <= grant.when;
    grant.when = std::max(grant.when, free);
  }
  granted_.insert(grant.when);
  waiting_[place] = grant;
  return grant;
}

int Restarts::waiting() const {
  return static_cast<int>(std::count_if(waiting_.begin(), waiting_.end(),
                                        [](const auto& one) { return one.second.left; }));
}

std::vector<int> Restarts::due(Clock::time_point now) {
  std::vector<int> places;
  for (const auto& [place, grant] : waiting_) {
    if (grant.when <= now) places.push_back(place);
  }
  for (const int place : places) {
    if (waiting_.extract(place).mapped().again) ++done_;
    places_[place].started = now;  // also if it cannot be started
  }
  return places;
}

std::optional<Restarts::Clock::time_point> Restarts::next() const {
  std::optional<Clock::time_point> first;
  for (const auto& [place, grant] : waiting_)
    first = std::min(first.value_or(grant.when), grant.when);
  return first;
}

Departures::Departures(const Rules& rules, int workers)
    : size_{rules.min_workers, std::max(rules.most_workers, workers)},
      restarts_(rules.max_restarts, rules.pause) {
  for (int place = 0; place < size_.most; ++place) {
    places_[place].runs = place < workers;
    places_[place].spare = place >= workers;
  }
}

Departures::Place Departures::at(int place) const {
  const auto found = places_.find(place);
  return found == places_.end() ? Place{} : found->second;
}

int Departures::count(bool Place::*what) const {
  return static_cast<int>(std::count_if(places_.begin(), places_.end(),
                                        [what](const auto& one) { return one.second.*what; }));
}

void Departures::on_formed(const std::vector<int>& places) {
  for (auto& [number, place] : places_) place.member = place.past_end = false;
  for (const int place : places) places_[place].member = true;
  leader_ = {places.empty() ? -1 : places.front()};
}

std::vector<int> Departures::on_closed() {
  if (closed_ || finishing_) return {};
  closed_ = true;
  std::vector<int> newcomers;
  for (auto& [number, place] : places_) {
    place.waits = wants(number) && restarts_.waits(number);
    if (place.runs && !place.member) newcomers.push_back(number);
  }
  restarts_.drop();
  return newcomers;
}

// Their programs begin with the first loop, which can be joined.
void Departures::begin_again(Clock::time_point now) {
  closed_ = false;
  for (auto& [number, place] : places_) {
    if (std::exchange(place.waits, false)) restarts_.on_end(number, now);
  }
}

void Departures::finish() {
  finishing_ = true;
  restarts_.drop();
}

void Departures::on_ended_well(int number) {
  Place& place = places_[number];
  place.runs = place.dismissed = false;
  if (std::exchange(place.member, false)) finish();
}

Departures::Outcome Departures::on_left(int number, int live, Clock::time_point now) {
  Place& place = places_[number];
  place.runs = false;
  const bool member = std::exchange(place.member, false);
  const bool dismissed = std::exchange(place.dismissed, false);
  const bool is_wanted = wants(number);
  if (dismissed && is_wanted && !finishing_) restarts_.add(number, now);  // again
  if (dismissed || !is_wanted) {
    const bool others = live + restarts_.waiting() > 0;
    return {!others ? After::kTooFew : place.leaves ? After::kHostLeft : After::kResized};
  }
  // The leader may have had something to write.
  if (member && place.past_end && number != leader_.place) {
    finish();
    return {After::kPastEnd};
  }
  if (member && number == leader_.place) leader_.left = true;
  if (closed_ && !finishing_) {
    if (any_member()) {
      place.waits = true;
      if (live > 0 && live < size_.least) return {};  // 0: the last member dies in the same moment
      ++left_;
      return {After::kClosed};
    }
    begin_again(now);
  }
  const auto start = finishing_ ? std::nullopt : restarts_.on_end(number, now);
  const bool soon = start && start->left;
  // A newcomer cannot finish what the members have begun, and nobody needs it for that.
  const int others = finishing_ ? count(&Place::member) : live + restarts_.waiting();
  const bool needed = member || !finishing_;
  if (!soon && needed && others < size_.least) return {};
  ++left_;
  if (start) return {soon ? After::kReplaced : After::kNoRestart, start->when - now};
  return {finishing_ ? After::kFinishing : After::kNoRestart};
}

bool Departures::on_host_lost(const std::vector<int>& places, int live) {
  for (const int place : places) restarts_.drop(place);
  const int others = finishing_ ? live : live + restarts_.waiting();
  if (others < size_.least && !leader_is_done()) return false;
  for (const int number : places) {
    Place& place = places_[number];
    if (std::exchange(place.runs, false)) ++left_;
    place.member = false;
    place.leaves = true;
  }
  return true;
}

std::optional<std::vector<int>> Departures::on_host_leaves(const std::vector<int>& places,
                                                           int live) {
  if (objection(wanted())) return std::nullopt;
  int others = live + restarts_.waiting();
  for (const int place : places) others -= at(place).runs || restarts_.waits(place) ? 1 : 0;
  if (others < size_.least) return std::nullopt;
  for (const int place : places) {
    places_[place].leaves = true;
    restarts_.drop(place);
  }
  return end_newcomers(places);
}

void Departures::on_host_joined(const std::vector<int>& places) {
  for (auto& [number, place] : places_) place.spare = place.spare && !place.runs;
  for (int place = size_.most; place < places.front(); ++place) places_[place].spare = true;
  for (const int number : places) {
    Place& place = places_[number];
    place.runs = place.later = true;
    place.spare = false;
  }
  size_.most = std::max(size_.most, places.back() + 1);
}

bool Departures::wants(int number) const {
  const Place place = at(number);
  return number < size_.most && !place.leaves && !place.spare;
}

int Departures::end() const {
  int end = size_.most;
  while (end > 0 && !wants(end - 1)) --end;
  return end;
}

int Departures::wanted() const {
  return size_.most -
         static_cast<int>(std::count_if(places_.begin(), places_.end(), [this](const auto& one) {
           return one.first < size_.most && !wants(one.first);
         }));
}

int Departures::most() const {
  return size_.most - count(&Place::leaves);
}

int Departures::training(const std::set<int>& without) const {
  return static_cast<int>(std::count_if(places_.begin(), places_.end(), [&](const auto& one) {
    const Place& place = one.second;
    return place.member && !place.expelled && !place.dismissed && !without.contains(one.first);
  }));
}

Departures::Outcome Departures::on_refused(int number, int live) {
  Place& place = places_[number];
  place.runs = place.dismissed = false;
  if (place.leaves) return {After::kHostLeft};
  if (!wants(number)) return {After::kResized};
  if (!finishing_ && live + restarts_.waiting() < size_.least) return {};
  ++left_;
  return {After::kRefused};
}

std::optional<std::string> Departures::objection(int workers) const {
  if (finishing_) return "it has reached its end";
  if (closed_) return "nobody can join or leave: its program is past its first loop over batches";
  if (workers >= size_.least && workers <= most()) return std::nullopt;
  return size_.least == most() ? fmt::format("it can have {} workers only", size_.least)
                               : fmt::format("it can have {} to {} workers", size_.least, most());
}

std::vector<int> Departures::on_resize(int workers, Clock::time_point now) {
  int more = workers - wanted();
  for (int place = 0; place < size_.most && more > 0; ++place) {
    if (at(place).leaves || wants(place)) continue;
    places_[place].spare = false;
    --more;
  }
  for (int place = size_.most - 1; place >= 0 && more < 0; --place) {
    if (!wants(place)) continue;
    places_[place].spare = true;
    ++more;
  }
  std::vector<int> unwanted;
  for (int place = 0; place < size_.most; ++place) {
    if (!wants(place)) {
      restarts_.drop(place);
      unwanted.push_back(place);
    } else if (!at(place).runs) {
      // One for which no restart is left starts now, because somebody asks for it.
      restarts_.add(place, now);
    }
  }
  return end_newcomers(unwanted);
}

// Of these places, the processes that are in no generation and not being ended.
std::vector<int> Departures::end_newcomers(const std::vector<int>& places) {
  std::vector<int> ended;
  for (const int number : places) {
    Place& place = places_[number];
    if (place.runs && !place.member && !std::exchange(place.dismissed, true))
      ended.push_back(number);
  }
  return ended;
}

std::vector<int> Departures::due(Clock::time_point now) {
  std::vector<int> places = restarts_.due(now);
  for (const int number : places) {
    Place& place = places_[number];
    place.expelled = false;
    place.runs = place.later = true;
  }
  return places;
}

}  // namespace lockstep::control
