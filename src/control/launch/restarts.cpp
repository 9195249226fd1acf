#include "control/launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace lockstep::control {

std::optional<Restarts::Grant> Restarts::on_end(int place, Clock::time_point now) {
  if (most_ <= 0) return std::nullopt;
  Place& its = places_[place];
  const bool soon = its.started && now - *its.started < kSoon;
  its.deaths = soon ? its.deaths + 1 : 0;
  Clock::duration wait{};
  for (int death = 1; death < its.deaths && wait < kLongestWait; ++death)
    wait = std::clamp<Clock::duration>(2 * wait, kFirstWait, kLongestWait);
  Grant grant{now + wait};
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
    : size_{rules.min_workers, workers, std::max(rules.most_workers, workers)},
      restarts_(rules.max_restarts) {
  for (int place = 0; place < workers && workers != kMostWorkersOf; ++place) running_.insert(place);
}

void Departures::on_formed(const std::vector<int>& places) {
  members_ = {places.begin(), places.end()};
  leader_ = {places.empty() ? -1 : places.front()};
  past_end_.clear();
}

std::vector<int> Departures::on_closed() {
  if (closed_ || finishing_) return {};
  closed_.emplace();
  for (int place = 0; place < size_.wanted; ++place) {
    if (restarts_.waits(place)) closed_->insert(place);
  }
  restarts_.drop();
  std::vector<int> newcomers;
  std::set_difference(running_.begin(), running_.end(), members_.begin(), members_.end(),
                      std::back_inserter(newcomers));
  return newcomers;
}

// Their programs begin with the first loop, which can be joined.
void Departures::begin_again(Clock::time_point now) {
  const std::set<int> empty = std::move(*closed_);
  closed_.reset();
  for (const int place : empty) restarts_.on_end(place, now);
}

void Departures::finish() {
  finishing_ = true;
  restarts_.drop();
}

void Departures::on_ended_well(int place) {
  running_.erase(place);
  dismissed_.erase(place);
  if (members_.erase(place) > 0) finish();
}

Departures::Outcome Departures::on_left(int place, int live, Clock::time_point now) {
  running_.erase(place);
  const bool member = members_.erase(place) > 0;
  const bool dismissed = dismissed_.erase(place) > 0;
  if (dismissed && place < size_.wanted && !finishing_) restarts_.add(place, now);  // again
  if (dismissed || place >= size_.wanted) {
    const bool others = live + restarts_.waiting() > 0;
    return {others ? After::kResized : After::kTooFew};
  }
  // The leader may have had something to write.
  if (member && past_end_.contains(place) && place != leader_.place) {
    finish();
    return {After::kPastEnd};
  }
  if (member && place == leader_.place) leader_.left = true;
  if (closed_ && !finishing_) {
    if (!members_.empty()) {
      closed_->insert(place);
      if (live > 0 && live < size_.least) return {};  // 0: the last member dies in the same moment
      ++left_;
      return {After::kClosed};
    }
    begin_again(now);
  }
  const auto start = finishing_ ? std::nullopt : restarts_.on_end(place, now);
  const bool soon = start && start->left;
  // A newcomer cannot finish what the members have begun, and nobody needs it for that.
  const int others = finishing_ ? static_cast<int>(members_.size()) : live + restarts_.waiting();
  const bool needed = member || !finishing_;
  if (!soon && needed && others < size_.least) return {};
  ++left_;
  if (start) return {soon ? After::kReplaced : After::kNoRestart, start->when - now};
  return {finishing_ ? After::kFinishing : After::kNoRestart};
}

bool Departures::on_host_lost(const std::vector<int>& places, int live) {
  for (const int place : places) restarts_.drop(place);
  const int others = finishing_ ? live : live + restarts_.waiting();
  if (others < size_.least) return false;
  for (const int place : places) {
    if (running_.erase(place) > 0) ++left_;
    members_.erase(place);
  }
  return true;
}

void Departures::on_host_joined(const std::vector<int>& places) {
  for (const int place : places) {
    running_.insert(place);
    later_.insert(place);
    size_.wanted = std::max(size_.wanted, place + 1);
  }
  size_.most = std::max(size_.most, size_.wanted);
}

int Departures::training(const std::set<int>& without) const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [&](int place) {
    return !without.contains(place) && !expelled_.contains(place) && !dismissed_.contains(place);
  }));
}

Departures::Outcome Departures::on_refused(int place, int live) {
  running_.erase(place);
  dismissed_.erase(place);
  if (place >= size_.wanted) return {After::kResized};
  if (!finishing_ && live + restarts_.waiting() < size_.least) return {};
  ++left_;
  return {After::kRefused};
}

std::optional<std::string> Departures::objection(int workers) const {
  if (finishing_) return "it has reached its end";
  if (closed_) return "nobody can join or leave: its program is past its first loop over batches";
  if (workers >= size_.least && workers <= size_.most) return std::nullopt;
  return size_.least == size_.most
             ? fmt::format("it can have {} workers only", size_.least)
             : fmt::format("it can have {} to {} workers", size_.least, size_.most);
}

std::vector<int> Departures::on_resize(int workers, Clock::time_point now) {
  size_.wanted = workers;
  std::vector<int> ended;
  for (int place = 0; place < size_.most; ++place) {
    const bool runs = running_.contains(place);
    if (place < workers) {
      // One for which no restart is left starts now, because somebody asks for it.
      if (!runs) restarts_.add(place, now);
    } else {
      restarts_.drop(place);
      if (runs && !members_.contains(place) && dismissed_.insert(place).second)
        ended.push_back(place);
    }
  }
  return ended;
}

std::vector<int> Departures::due(Clock::time_point now) {
  std::vector<int> places = restarts_.due(now);
  for (const int place : places) {
    expelled_.erase(place);
    running_.insert(place);
    later_.insert(place);
  }
  return places;
}

}  // namespace lockstep::control
