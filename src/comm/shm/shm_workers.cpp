#include "comm/shm/shm_workers.h"

#include <fmt/format.h>

#include <chrono>

#include "comm/shm/futex.h"

namespace lockstep::comm {
namespace {

// A wait for a peer's notice looks at its life as well.
constexpr std::chrono::milliseconds kLookInterval{5};

}  // namespace

void ShmWorkers::note_death(int rank) {
  dead_[static_cast<std::size_t>(rank)].store(true);
  own().ring_bell();
  own().ring_board_bell();
  futex_wake_all(of(rank).head().told.there);
}

std::optional<Failure> ShmWorkers::end_of(int rank) const {
  const bool dead = is_dead(rank);  // before the look at its notice
  if (auto notice = read_notice(of(rank).head().ended)) return notice;
  if (!dead) return std::nullopt;
  return Failure{ErrorKind::kPeerLost, {rank}, fmt::format("rank {} died", rank)};
}

std::optional<Failure> ShmWorkers::heard_from(int peer, Deadline deadline) const noexcept {
  if (peer < 0 || peer >= size() || peer == rank_)
    return std::nullopt;  // a peer may have named anybody
  const Notice& told = of(peer).head().told;
  while (true) {
    const bool dead = is_dead(peer);  // before the last look at its notice
    if (auto notice = read_notice(told)) return notice;
    if (deadline.expired() || dead) return std::nullopt;
    futex_wait(told.there, 0, earlier(deadline, Deadline::after(kLookInterval)));
  }
}

}  // namespace lockstep::comm
