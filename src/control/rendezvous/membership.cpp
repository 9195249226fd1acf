#include "control/rendezvous/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep::control {
namespace {

std::vector<int> survivors_of(const Membership& now) {
  std::vector<int> survivors;
  std::copy_if(now.last.begin(), now.last.end(), std::back_inserter(survivors),
               [&](int place) { return now.alive.contains(place); });
  return survivors;
}

bool waits(const Membership& now, int place) {
  return std::any_of(now.waiting.begin(), now.waiting.end(),
                     [place](const Candidate& one) { return one.place == place; });
}

// Places that wait and are not among these, in order.
std::vector<int> others(const Membership& now, const std::vector<int>& these) {
  std::vector<int> places;
  for (const Candidate& one : now.waiting) {
    if (std::find(these.begin(), these.end(), one.place) == these.end())
      places.push_back(one.place);
  }
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace

MembershipVerdict next_members(const Membership& now, const MembershipRules& rules,
                               std::chrono::steady_clock::time_point time) {
  MembershipVerdict verdict;
  const std::vector<int> survivors = survivors_of(now);
  const std::set<int> expected =
      survivors.empty() ? now.alive : std::set<int>(survivors.begin(), survivors.end());
  std::vector<int> late;
  std::copy_if(expected.begin(), expected.end(), std::back_inserter(late),
               [&](int place) { return !waits(now, place); });
  if (!late.empty() || expected.empty()) {
    verdict.reason =
        expected.empty() ? "no worker runs" : fmt::format("waits for {}", fmt::join(late, ", "));
    // Only a survivor that waits has seen the others stop. Newcomers may take as long as they need to start.
    std::optional<std::chrono::steady_clock::time_point> since;
    for (const Candidate& one : now.waiting) {
      const bool survivor =
          std::find(survivors.begin(), survivors.end(), one.place) != survivors.end();
      if (survivor && (!since || one.since < *since)) since = one.since;
    }
    if (!since || late.empty()) return verdict;
    if (time >= *since + rules.patience) {
      verdict.expelled = late;
    } else {
      verdict.ask_again = *since + rules.patience;
    }
    return verdict;
  }
  const bool in_batch = std::any_of(now.waiting.begin(), now.waiting.end(),
                                    [](const Candidate& one) { return one.in_batch; });
  std::vector<int> next = survivors;
  if (!in_batch) {
    const std::vector<int> newcomers = others(now, survivors);
    next.insert(next.end(), newcomers.begin(), newcomers.end());
    if (static_cast<int>(next.size()) < rules.least) {
      verdict.reason = fmt::format("{} of at least {} workers are here", next.size(), rules.least);
      return verdict;
    }
  }
  verdict.forms = next;
  verdict.survivors = static_cast<int>(survivors.size());
  verdict.reason =
      fmt::format("{} stayed, {} joined", survivors.size(), next.size() - survivors.size());
  return verdict;
}

}  // namespace lockstep::control
