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

// Wanted places that wait and are not among these, in order.
std::vector<int> others(const Membership& now, const std::vector<int>& these,
                        const MembershipRules& rules) {
  std::vector<int> places;
  for (const Candidate& one : now.waiting) {
    if (rules.wants(one.place) && std::find(these.begin(), these.end(), one.place) == these.end())
      places.push_back(one.place);
  }
  std::sort(places.begin(), places.end());
  return places;
}

// If all workers of a generation have ended, one after the other, the first replacement may be here before the process of the
// last one runs: nobody could join those that began without it in a program that has no loop.
std::chrono::steady_clock::time_point gathers_until(const Membership& now,
                                                    const MembershipRules& rules,
                                                    std::size_t here) {
  constexpr std::chrono::milliseconds kGathering{1000};  // a replacement is started after 200 ms
  auto first = std::chrono::steady_clock::time_point::max();
  for (const Candidate& one : now.waiting) first = std::min(first, one.since);
  if (static_cast<int>(here) >= std::min(now.before, rules.wanted) || now.waiting.empty())
    return std::chrono::steady_clock::time_point::min();
  return first + kGathering;
}

// Workers of the last generation that have not come, though others wait for them.
void judge_late(const Membership& now, const MembershipRules& rules,
                std::chrono::steady_clock::time_point time, const std::vector<int>& survivors,
                const std::vector<int>& late, MembershipVerdict& verdict) {
  // Only a survivor that waits has seen the others stop. Newcomers may take as long as they need to start.
  std::optional<std::chrono::steady_clock::time_point> since;
  for (const Candidate& one : now.waiting) {
    const bool survivor =
        std::find(survivors.begin(), survivors.end(), one.place) != survivors.end();
    if (survivor && (!since || one.since < *since)) since = one.since;
  }
  if (!since || late.empty()) return;
  if (time >= *since + rules.patience) {
    verdict.expelled = late;
  } else {
    verdict.ask_again = *since + rules.patience;
  }
}

}  // namespace

std::vector<int> to_dismiss(const Membership& now, const MembershipRules& rules) {
  const std::vector<int> survivors = survivors_of(now);
  const std::vector<int> newcomers = others(now, survivors, rules);
  std::vector<int> leave;
  std::copy_if(survivors.begin(), survivors.end(), std::back_inserter(leave),
               [&](int place) { return !rules.wants(place); });
  const std::size_t stay = survivors.size() + newcomers.size() - leave.size();
  if (stay < static_cast<std::size_t>(std::max(rules.least, 1)) || leave.size() == survivors.size())
    return {};
  return leave;
}

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
    judge_late(now, rules, time, survivors, late, verdict);
    return verdict;
  }
  const bool in_batch = std::any_of(now.waiting.begin(), now.waiting.end(),
                                    [](const Candidate& one) { return one.in_batch; });
  std::vector<int> next = survivors;
  if (!in_batch) {
    verdict.dismissed = to_dismiss(now, rules);
    if (!verdict.dismissed.empty()) {
      verdict.reason = fmt::format("{} leave", fmt::join(verdict.dismissed, ", "));
      return verdict;
    }
    const std::vector<int> newcomers = others(now, survivors, rules);
    next.insert(next.end(), newcomers.begin(), newcomers.end());
    if (static_cast<int>(next.size()) < rules.least) {
      verdict.reason = fmt::format("{} of at least {} workers are here", next.size(), rules.least);
      return verdict;
    }
  }
  if (const auto until = gathers_until(now, rules, next.size());
      survivors.empty() && time < until) {
    verdict.reason = "waits for others that are to be replaced";
    verdict.ask_again = until;
    return verdict;
  }
  verdict.forms = next;
  verdict.survivors = static_cast<int>(survivors.size());
  verdict.reason =
      fmt::format("{} stayed, {} joined", survivors.size(), next.size() - survivors.size());
  return verdict;
}

}  // namespace lockstep::control
