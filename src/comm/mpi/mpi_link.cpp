#include "comm/mpi/mpi_link.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "comm/core/frame_link.h"
#include "comm/mpi/mpi_peer.h"
#include "comm/mpi/mpi_process.h"

namespace lockstep::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = Deadline::Clock;

// How long a thread that waits spins before it sleeps, and how long it sleeps then.
constexpr microseconds kMpiSpin{100};
constexpr microseconds kShortestNap{20};
constexpr microseconds kLongestNap{1000};
// How often the link's own thread looks while nobody waits.
constexpr milliseconds kLook{1};

// All calls of MPI, too, are made with the mutex held.
class MpiLink final : public FrameLink {
 public:
  explicit MpiLink(MpiFormed formed);
  ~MpiLink() override;

  std::string engine() const override { return "mpi"; }
  void fail(const Failure& failure) noexcept override { end(failure, kNoticePatience); }

 private:
  FramePeer* peer(int other) const noexcept override LOCKSTEP_REQUIRES(mutex_) {
    return peers_[static_cast<std::size_t>(other)].get();
  }
  bool push(int other) noexcept override LOCKSTEP_REQUIRES(mutex_) { return move(peer_at(other)); }
  void look(const Post& /*post*/) override LOCKSTEP_REQUIRES(mutex_) { progress(); }
  void drive(const Post& post, Deadline deadline) override LOCKSTEP_REQUIRES(mutex_);
  void await_told(Deadline deadline) noexcept override LOCKSTEP_REQUIRES(mutex_) {
    move_until(&MpiLink::all_told, deadline);
  }
  void tend() override;

  MpiPeer& peer_at(int other) const LOCKSTEP_REQUIRES(mutex_) {
    return *peers_[static_cast<std::size_t>(other)];
  }
  bool all_parted() const LOCKSTEP_REQUIRES(mutex_);
  using Enough = bool (MpiLink::*)() const;
  void move_until(Enough enough, Deadline deadline) noexcept LOCKSTEP_REQUIRES(mutex_);

  void pause(Clock::time_point idle_since, Deadline deadline) LOCKSTEP_REQUIRES(mutex_);
  bool progress() noexcept LOCKSTEP_REQUIRES(mutex_);
  bool take_arrivals() LOCKSTEP_REQUIRES(mutex_);
  bool move(MpiPeer& peer) noexcept LOCKSTEP_REQUIRES(mutex_);
  void end(const Failure& failure, milliseconds patience) noexcept;
  void close() noexcept LOCKSTEP_REQUIRES(mutex_);

  const MpiFormed formed_;
  std::vector<std::unique_ptr<MpiPeer>> peers_ LOCKSTEP_GUARDED_BY(mutex_);  // none for this worker
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // MPI is not called any more
};

MpiLink::MpiLink(MpiFormed formed)
    : FrameLink(formed.rank, formed.size), formed_(std::move(formed)) {
  peers_.resize(static_cast<std::size_t>(size()));  // fail() looks at all of them
  try {
    {
      const base::Lock lock(mutex_);
      for (int other = 0; other < size(); ++other)
        if (is_peer(other))
          peers_[static_cast<std::size_t>(other)] =
              std::make_unique<MpiPeer>(other, *formed_.communicator);
    }
    start_tending();
  } catch (const std::exception& error) {
    fail(failure_of(rank(), error));  // for the others the world has formed: tell them
    throw;
  }
}

MpiLink::~MpiLink() {
  end(left_world(), kLeavePatience);
  stop_tending();
}

// Asks for all threads that wait, until `post` is settled.
void MpiLink::drive(const Post& post, Deadline deadline) {
  auto idle_since = Clock::now();
  while (!over(post) && !deadline.expired()) {
    if (progress()) {
      idle_since = Clock::now();
    } else {
      pause(idle_since, deadline);
    }
  }
}

// Naps grow with the wait, so that they add little to it.
void MpiLink::pause(Clock::time_point idle_since, Deadline deadline) {
  const base::Unlock unlocked(mutex_);
  const auto idle = Clock::now() - idle_since;
  if (idle < (formed_.crowded ? microseconds(0) : kMpiSpin)) {
    ::sched_yield();
    return;
  }
  const auto nap =
      std::clamp(std::chrono::duration_cast<microseconds>(idle / 8), kShortestNap, kLongestNap);
  std::this_thread::sleep_until(std::min(Clock::now() + nap, deadline.when()));
}

// Moves what MPI has and takes. True if something moved; all who wait are told then.
bool MpiLink::progress() noexcept {
  if (closed_) return false;
  bool moved = false;
  try {
    moved = take_arrivals();
  } catch (const std::exception& error) {
    fail_locked(failure_of(rank(), error));
    moved = true;
  }
  for (const auto& peer : peers_) {
    if (peer) moved = move(*peer) || moved;
  }
  if (moved) spread_news();
  return moved;
}

// Every message that MPI shows, up to some for each peer: then they are looked at.
bool MpiLink::take_arrivals() {
  for (int count = 0; count < 4 * size(); ++count) {
    const auto arrival = formed_.communicator->arrival();
    if (!arrival) return count > 0;
    if (!is_peer(arrival->peer)) continue;
    peer_at(arrival->peer).arrive(arrival->bytes);
  }
  return true;
}

bool MpiLink::move(MpiPeer& peer) noexcept {
  if (closed_) return false;
  try {
    const bool read = peer.read();
    hear(peer);
    return peer.write() || read;
  } catch (const Unavailable& error) {  // MPI's own words
    if (!peer.failure)
      end_peer(peer, {ErrorKind::kPeerLost,
                      {peer.rank()},
                      fmt::format("rank {} was lost: {}", peer.rank(), error.what())});
  } catch (const std::exception& error) {
    fail_locked(failure_of(rank(), error));
  }
  return true;
}

bool MpiLink::all_parted() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return !peer || peer->parted(); });
}

void MpiLink::move_until(Enough enough, Deadline deadline) noexcept {
  const auto begun = Clock::now();
  while (!closed_ && !(this->*enough)() && !deadline.expired()) {
    if (!progress()) pause(begun, deadline);
  }
}

// Only the first call waits, even if the link has failed before it.
void MpiLink::end(const Failure& failure, milliseconds patience) noexcept {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  if (!formed_.process->usable()) closed_ = true;
  fail_locked(failure);
  for (const auto& peer : peers_) {
    if (peer) peer->part();
  }
  move_until(&MpiLink::all_parted, Deadline::after(patience));
  close();
}

// What MPI still has is left to it.
void MpiLink::close() noexcept {
  if (std::exchange(closed_, true)) return;
  MpiLeftover leftover{formed_.communicator, {}};
  for (const auto& peer : peers_) {
    if (peer) peer->leave(leftover);
  }
  if (leftover.requests.empty()) {
    formed_.communicator->free();
  } else {
    formed_.process->keep(std::move(leftover));
  }
}

void MpiLink::tend() {
  base::Lock lock(mutex_);
  while (!stopping()) {
    if (!driving()) progress();
    nap(lock, Clock::now() + kLook);
  }
}

}  // namespace

std::shared_ptr<Link> make_mpi_link(MpiFormed formed) {
  return std::make_shared<MpiLink>(std::move(formed));
}

}  // namespace lockstep::comm
