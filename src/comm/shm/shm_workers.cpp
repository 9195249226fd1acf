#include "comm/shm/shm_workers.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "comm/shm/doorbell.h"

namespace lockstep::comm {

ShmMonitor::ShmMonitor(std::vector<Watched> watched, std::function<void(int)> when_dead)
    : watched_(std::move(watched)), when_dead_(std::move(when_dead)), stop_(base::make_pipe()) {
  // Made before the thread begins: the thread could tell nobody that memory has run out.
  std::vector<pollfd> entries{{stop_.read.get(), POLLIN, 0}};
  for (const Watched& one : watched_) entries.push_back({one.pidfd.get(), POLLIN, 0});
  try {
    thread_ = std::thread([this, entries = std::move(entries)]() mutable { run(entries); });
  } catch (const std::system_error&) {
    throw Unavailable("cannot start a thread; raise `ulimit -u`");
  }
}

ShmMonitor::~ShmMonitor() {
  stop_.write.reset();
  thread_.join();
}

void ShmMonitor::run(std::vector<pollfd>& entries) {
  while (true) {
    if (::poll(entries.data(), entries.size(), -1) < 0) {
      if (errno != EINTR)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no memory: again
      continue;
    }
    if (entries[0].revents != 0) return;
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      entries[i].fd = -1;
      when_dead_(watched_[i - 1].rank);
    }
  }
}

namespace {

// How often a wait for a peer's notice looks whether the peer is alive.
constexpr std::chrono::milliseconds kLookInterval{5};

}  // namespace

bool ShmWorkers::crowded() const {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const Segment& segment : segments_) {
    cpu_set_t its;
    CPU_ZERO(&its);
    if (::sched_getaffinity(segment.head().face.pid, sizeof its, &its) != 0)  // it has ended, say
      return size() > static_cast<int>(std::thread::hardware_concurrency());
    CPU_OR(&all, &all, &its);
  }
  return size() > CPU_COUNT(&all);
}

void ShmWorkers::note_death(int rank) {
  dead_[static_cast<std::size_t>(rank)].store(true);
  own().ring_bell();
  own().ring_board_bell();
  futex_wake_all(of(rank).head().told.there);
}

std::optional<Failure> ShmWorkers::end_of(int rank) const {
  const bool dead = is_dead(rank);  // read before the notice: a notice written before death counts
  if (auto notice = read_notice(of(rank).head().ended)) return notice;
  if (!dead) return std::nullopt;
  return Failure{ErrorKind::kPeerLost, {rank}, fmt::format("rank {} died", rank)};
}

std::optional<Failure> ShmWorkers::heard_from(int peer, Deadline deadline) const noexcept {
  if (peer < 0 || peer >= size() || peer == rank_)
    return std::nullopt;  // a peer may have named anybody
  const Notice& told = of(peer).head().told;
  while (true) {
    const bool dead = is_dead(peer);  // read before the last look at its notice
    if (auto notice = read_notice(told)) return notice;
    if (deadline.expired() || dead) return std::nullopt;
    futex_wait(told.there, 0, earlier(deadline, Deadline::after(kLookInterval)));
  }
}

}  // namespace lockstep::comm
