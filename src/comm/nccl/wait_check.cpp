#include "comm/nccl/wait_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <thread>

namespace lockstep::comm {

WaitCheck::WaitCheck(Link& link, std::vector<int> members, std::string doing)
    : link_(link),
      peers_(std::move(members)),
      doing_(std::move(doing)),
      deadline_(Deadline::after(std::chrono::hours(24 * 365))),
      begun_(Deadline::Clock::now()) {
  std::erase(peers_, link.rank());
}

void WaitCheck::begin(Deadline deadline) {
  deadline_ = deadline;
  begun_ = Deadline::Clock::now();
  first_end_.reset();
}

// A late worker on a device does not know for whom it waits, so its notice names itself.
bool WaitCheck::is_late_too(int peer, const Failure& told) const {
  return told.kind == ErrorKind::kTimeout && told.ranks == std::vector<int>{peer};
}

std::optional<Failure> WaitCheck::end_of_a_member() {
  for (const int peer : peers_) {
    auto end = link_.end_of(peer);
    if (!end) end = link_.heard_from(peer, Deadline::after(std::chrono::nanoseconds(0)));
    if (end) return is_late_too(peer, *end) ? late() : *end;
  }
  return std::nullopt;
}

std::optional<Failure> WaitCheck::look() {
  if (auto failure = link_.failure()) return failure;
  if (deadline_.expired()) return late();
  auto end = end_of_a_member();
  if (!end) return std::nullopt;
  const auto now = Deadline::Clock::now();
  if (!first_end_) first_end_ = now;
  if (now - *first_end_ < kGrace) return std::nullopt;
  if (end->kind != ErrorKind::kPeerLost) return end;
  end->text += fmt::format("; rank {} needed it in {}", link_.rank(), doing_);
  return end;
}

// Every late worker tells so and listens for a moment. A worker that tells nothing is the one that
// all wait for.
Failure WaitCheck::late() {
  const std::chrono::duration<double> waited = Deadline::Clock::now() - begun_;
  Failure own{
      ErrorKind::kTimeout,
      {link_.rank()},
      fmt::format("rank {} waited {:.1f} s in {} on GPUs", link_.rank(), waited.count(), doing_)};
  link_.tell(own);
  const auto moment = Deadline::after(kMoment);
  std::vector<int> silent;
  for (const int peer : peers_) {
    if (auto end = link_.end_of(peer); end && !is_late_too(peer, *end)) return *end;
    const auto told = link_.heard_from(peer, moment);
    if (!told) {
      silent.push_back(peer);
    } else if (!is_late_too(peer, *told)) {
      return *told;
    }
  }
  own.ranks = silent;
  own.text = silent.empty()
                 ? own.text + ", as all others did; is its own stream, or the network, stuck?"
                 : fmt::format(
                       "rank {} waited {:.1f} s for rank {} in {} on GPUs; is it stopped, or "
                       "its GPU busy with other work?",
                       link_.rank(), waited.count(), fmt::join(silent, ", "), doing_);
  return own;
}

// A killed process closes its sockets first, which NCCL notices, and then gives its GPU back, which
// may take seconds. Only then does the host link know that it has ended, and which one it was.
Failure WaitCheck::explain(const NcclState& state) {
  constexpr auto kPatience = std::chrono::milliseconds(4000);
  const auto patience = Deadline::after(kPatience);
  while (!patience.expired()) {
    if (const auto failure = link_.failure()) return *failure;
    if (const auto end = end_of_a_member()) return *end;
    if (!state.peers_trouble) break;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // the host learns of a death by itself
  }
  if (state.peers_trouble) {
    return {
        ErrorKind::kPeerLost,
        {},
        fmt::format("rank {} lost another worker in {}: {}", link_.rank(), doing_, state.trouble)};
  }
  return {ErrorKind::kUnavailable,
          {link_.rank()},
          fmt::format("rank {} cannot go on with {}: {}", link_.rank(), doing_, state.trouble)};
}

}  // namespace lockstep::comm
