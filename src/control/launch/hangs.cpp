#include "control/launch/hangs.h"

#include <algorithm>
#include <utility>

namespace lockstep::control {

Hangs::Found Hangs::look(const std::map<int, Said>& said, Clock::time_point now) {
  const auto before = std::exchange(looked_, now);
  if (before && now - *before > kLate) places_.clear();
  take(said, now);
  Found found{{}, {}, {}, limit()};
  for (const auto& [place, one] : places_) {
    if (now - one.since < found.limit) continue;
    found.silent.push_back(place);
    if (one.said.doing == Doing::kWaits) found.waiters.push_back(place);
    if (one.said.doing == Doing::kComputes && one.said.phases > 1) found.hung.push_back(place);
  }
  if (found.waiters.empty()) found.hung.clear();
  return found;
}

void Hangs::take(const std::map<int, Said>& said, Clock::time_point now) {
  std::erase_if(places_, [&](const auto& one) { return !said.contains(one.first); });
  for (const auto& [place, says] : said) {
    const auto [known, is_new] = places_.try_emplace(place, Place{says, now, now});
    Place& one = known->second;
    if (is_new || one.said == says) continue;
    if (says.phases > one.said.phases) {
      const auto phases = static_cast<Clock::rep>(says.phases - one.said.phases);
      phases_.push_back((now - std::exchange(one.phase_at, now)) / phases);
      if (phases_.size() > kMostPhases) phases_.pop_front();
    }
    one.said = says;
    one.since = now;
  }
}

Hangs::Clock::duration Hangs::limit() const {
  if (asked_) return *asked_;
  if (phases_.empty()) return kLeastLimit;
  std::vector<Clock::duration> sorted(phases_.begin(), phases_.end());
  std::sort(sorted.begin(), sorted.end());
  return std::max<Clock::duration>(kLeastLimit, kMedianPhases * sorted[sorted.size() / 2]);
}

}  // namespace lockstep::control
