#include "control/launch/blame.h"

#include <set>
#include <tuple>

namespace lockstep::control {

void Blame::on_loss(int rank, std::optional<int> whom) {
  losses_.erase(rank);
  if (whom) losses_.emplace(rank, *whom);
}

void Blame::on_ends(const std::vector<WorkerEnd>& together) {
  for (const auto& end : together) ends_.emplace(end.rank, end);
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

}  // namespace lockstep::control
