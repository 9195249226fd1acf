#include "comm/tcp/tcp_link.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <utility>

#include "comm/core/frame_link.h"
#include "comm/tcp/tcp_peer.h"
#include "comm/tcp/tcp_poll.h"

namespace lockstep::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = Deadline::Clock;

// How long a thread that waits spins before it sleeps.
constexpr microseconds kSpin{100};
// One in so many looks for one peer's message is a look at all peers.
constexpr std::uint64_t kLooksAtOnePeer = 64;
// How long a call looks for messages that are about to come.
constexpr microseconds kPatienceInCall{20};
// How long the link's own thread leaves the peers to threads that wait, before it looks again.
constexpr milliseconds kStandBack{10};
// A worker that sends nothing else to another host sends a sign of life every kBeat. After kSilence
// without one it is lost.
constexpr milliseconds kBeat{1000};
constexpr milliseconds kSilence{3000};

std::string lost_text(const TcpPeer& peer) {
  return fmt::format(
      "rank {} at {} was lost without a word: it was killed, or {}", peer.rank(), peer.address(),
      peer.elsewhere() ? "the network between the hosts was cut" : "the connection to it was cut");
}

std::string silent_text(const TcpPeer& peer) {
  return fmt::format(
      "nothing was heard from rank {} at {} for {} s: its host is stopped or gone, or the network "
      "to it is cut",
      peer.rank(), peer.address(), kSilence.count() / 1000);
}

// Sockets are read and written with the mutex held, too, for a while each.
class TcpLink final : public FrameLink {
 public:
  explicit TcpLink(TcpWorld world);
  ~TcpLink() override;

  std::string engine() const override { return "tcp"; }
  std::optional<microseconds> patience_in_call() const override {
    return std::min(spin_, kPatienceInCall);
  }
  void fail(const Failure& failure) noexcept override { end(failure, kNoticePatience); }
  void received_by(int other, std::uint64_t messages) noexcept override;

 private:
  FramePeer* peer(int other) const noexcept override LOCKSTEP_REQUIRES(mutex_) {
    return peers_[static_cast<std::size_t>(other)].get();
  }
  bool push(int other) noexcept override LOCKSTEP_REQUIRES(mutex_);
  void look(const Post& post) override LOCKSTEP_REQUIRES(mutex_);
  void drive(const Post& post, Deadline deadline) override LOCKSTEP_REQUIRES(mutex_);
  void await_told(Deadline deadline) noexcept override LOCKSTEP_REQUIRES(mutex_);
  void spread_news() noexcept override LOCKSTEP_REQUIRES(mutex_);
  void tend() override;

  TcpPeer& peer_at(int other) const LOCKSTEP_REQUIRES(mutex_) {
    return *peers_[static_cast<std::size_t>(other)];
  }
  void add_peers(TcpWorld world);
  // These give the mutex back while they sleep.
  enum class Who { kDriver, kOther };
  bool progress(Who who, int wait_ms) LOCKSTEP_REQUIRES(mutex_);
  bool look_as(Who who, const Post& post) LOCKSTEP_REQUIRES(mutex_);
  void tell_waiters(Who who) noexcept LOCKSTEP_REQUIRES(mutex_);

  bool move(TcpPeer& peer, bool readable) LOCKSTEP_REQUIRES(mutex_);
  bool read_from(TcpPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  bool write_to(TcpPeer& peer) noexcept LOCKSTEP_REQUIRES(mutex_);
  void close(TcpPeer& peer) noexcept LOCKSTEP_REQUIRES(mutex_);
  void end(const Failure& failure, milliseconds patience) noexcept;
  void beat(Clock::time_point now) LOCKSTEP_REQUIRES(mutex_);

  microseconds spin_;
  std::vector<std::unique_ptr<TcpPeer>> peers_ LOCKSTEP_GUARDED_BY(mutex_);  // none for this worker
  std::optional<TcpPoll> poll_;
  struct History {
    std::uint64_t drives = 0;
    std::uint64_t looks = 0;
    Clock::time_point last_beat = Clock::now();
  };
  History history_ LOCKSTEP_GUARDED_BY(mutex_);
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

TcpLink::TcpLink(TcpWorld world)
    : FrameLink(world.rank, world.size), spin_(world.crowded ? microseconds(0) : kSpin) {
  peers_.resize(static_cast<std::size_t>(size()));  // fail() looks at all of them
  try {
    add_peers(std::move(world));
    start_tending();
  } catch (const std::exception& error) {
    fail(failure_of(rank(), error));  // for the others the world has formed: tell them
    throw;
  }
}

TcpLink::~TcpLink() {
  end(left_world(), kLeavePatience);
  stop_tending();
}

// First all of them, so that all can be told if the rest fails. The first sign of life goes at once:
// a peer that has never spoken cannot fall silent.
void TcpLink::add_peers(TcpWorld world) {
  const base::Lock lock(mutex_);
  for (int other = 0; other < size(); ++other) {
    const auto at = static_cast<std::size_t>(other);
    if (is_peer(other)) peers_[at] = std::make_unique<TcpPeer>(other, std::move(world.peers[at]));
  }
  poll_.emplace(peers_.size());
  for (std::size_t other = 0; other < peers_.size(); ++other) {
    if (!peers_[other]) continue;
    poll_->watch(peers_[other]->socket(), other);
    if (!peers_[other]->elsewhere()) continue;
    peers_[other]->beat(Clock::time_point::max());
    write_to(*peers_[other]);
  }
}

// Also the driver, which may sleep in poll_, and at the end the link's own thread.
void TcpLink::spread_news() noexcept {
  FrameLink::spread_news();
  if (poll_ && (driving() || stopping())) poll_->ring();
}

// Moves bytes for all threads that wait, until `post` is settled.
void TcpLink::drive(const Post& post, Deadline deadline) {
  auto now = Clock::now();
  auto spins_until = now + spin_;
  while (!over(post) && now < deadline.when()) {
    beat(now);  // the link's own thread may find the mutex taken for long
    const bool moved = now < spins_until ? look_as(Who::kDriver, post)
                                         : progress(Who::kDriver, deadline.left_ms());
    now = Clock::now();
    if (moved) spins_until = now + spin_;
  }
  ++history_.drives;
}

void TcpLink::look(const Post& post) {
  if (driving()) return;
  look_as(Who::kOther, post);
  ++history_.drives;
}

// Without waiting: moves what the post needs. A receive needs one socket, and asking that one is
// faster than asking which sockets have something. Now and then all of them have their turn. True if
// something moved.
bool TcpLink::look_as(Who who, const Post& post) {
  if (post.sends || ++history_.looks % kLooksAtOnePeer == 0) return progress(who, 0);
  const bool moved = move(peer_at(post.peer), true);
  if (moved) tell_waiters(who);
  return moved;
}

// Something has moved, and a driver sleeps only if another thread has moved it.
void TcpLink::tell_waiters(Who who) noexcept {
  if (who == Who::kDriver) {
    FrameLink::spread_news();
  } else {
    spread_news();
  }
}

// Waits for the sockets, and moves what they have and take. True if something moved. If there is a
// driver, the bell is for it, and stays until it has heard it.
bool TcpLink::progress(Who who, int wait_ms) {
  std::array<TcpPoll::Event, TcpPoll::kMostEvents> events;
  int count = 0;
  {
    const base::Unlock unlocked(mutex_);
    count = poll_->wait(events, wait_ms);
  }
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    const TcpPoll::Event& event = events[static_cast<std::size_t>(i)];
    if (event.who != TcpPoll::kBell) {
      moved = move(peer_at(static_cast<int>(event.who)), event.readable) || moved;
    } else if (who == Who::kDriver || !driving()) {
      poll_->hear();
    }
  }
  if (moved) tell_waiters(who);
  return moved;
}

bool TcpLink::move(TcpPeer& peer, bool readable) {
  bool moved = readable && read_from(peer);
  return write_to(peer) || moved;
}

bool TcpLink::read_from(TcpPeer& peer) {
  using Result = FrameReader::Result;
  try {
    const Result result = peer.read();
    hear(peer);
    if (result == Result::kNothing) return false;
    if (result == Result::kSome) return true;
    close(peer);
    if (result == Result::kClosed && !failed())
      end_peer(peer, {ErrorKind::kPeerLost, {peer.rank()}, lost_text(peer)});
    if (result == Result::kBroken)
      throw Mismatch(
          fmt::format("rank {} at {} sends bytes that are no frames: it is broken, or of "
                      "another build, or the network has changed them",
                      peer.rank(), peer.address()),
          {peer.rank()});
    if (result == Result::kForged)
      throw Mismatch(
          fmt::format("a frame of rank {} at {} was changed on its way here: its tag is "
                      "wrong. The network between the two hosts is broken or under attack",
                      peer.rank(), peer.address()),
          {peer.rank()});
  } catch (const Error& error) {
    fail_locked(failure_from(error));
  } catch (const std::exception& error) {
    fail_locked(failure_of(rank(), error));
  }
  return true;
}

bool TcpLink::push(int other) noexcept {
  return poll_ && write_to(peer_at(other));
}

bool TcpLink::write_to(TcpPeer& peer) noexcept {
  try {
    const bool wrote = peer.write();
    poll_->set_writable(peer.socket(), static_cast<std::size_t>(peer.rank()),
                        peer.wants_to_write());
    return wrote;
  } catch (const std::exception& error) {
    close(peer);  // what it was about to say is lost
    fail_locked(failure_of(rank(), error));
    return true;
  }
}

void TcpLink::close(TcpPeer& peer) noexcept {
  if (poll_) poll_->forget(peer.socket());
  peer.shut_down();
}

void TcpLink::received_by(int other, std::uint64_t messages) noexcept {
  const base::Lock lock(mutex_);
  peer_at(other).posts().sends.received(messages);
}

void TcpLink::await_told(Deadline deadline) noexcept {
  while (poll_ && !all_told() && !deadline.expired())
    progress(Who::kOther, std::min(deadline.left_ms(), 20));
}

// Only the first call waits, even if the link has failed before it.
void TcpLink::end(const Failure& failure, milliseconds patience) noexcept {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  fail_locked(failure);
  if (std::exchange(closed_, true)) return;
  await_told(Deadline::after(patience));
  for (const auto& peer : peers_) {
    if (peer) close(*peer);
  }
}

// Looks after the peers while no other thread does, and for a moment once in kStandBack in any case:
// a thread that finds its messages at once never looks at other peers.
void TcpLink::tend() {
  base::Lock lock(mutex_);
  std::uint64_t seen = 0;
  while (!stopping()) {
    beat(Clock::now());
    const bool others = driving() || history_.drives != seen;
    seen = history_.drives;
    if (others) {
      nap(lock, Clock::now() + kStandBack);
      progress(Who::kOther, 0);
    } else {
      progress(Who::kOther, static_cast<int>(kBeat.count()) / 4);
    }
  }
}

// Between hosts a cut network or a stopped host closes no connection. If this process itself has
// not run for a while, it is in no position to judge others. What has come already counts as heard.
void TcpLink::beat(Clock::time_point now) {
  if (failed() || now - history_.last_beat < kBeat / 2) return;
  const bool was_away = now - history_.last_beat > kSilence / 2;
  history_.last_beat = now;
  for (const auto& peer : peers_) {
    if (!peer || !peer->elsewhere() || peer->failure) continue;
    if (was_away) peer->forgive(now);
    peer->beat(now - kBeat / 2);
    if (write_to(*peer)) spread_news();
    if (peer->silent_since(now - kSilence) && read_from(*peer)) spread_news();
    if (!peer->failure && peer->silent_since(now - kSilence))
      end_peer(*peer, {ErrorKind::kPeerLost, {peer->rank()}, silent_text(*peer)});
  }
}

}  // namespace

std::shared_ptr<Link> make_tcp_link(TcpWorld world) {
  return std::make_shared<TcpLink>(std::move(world));
}

}  // namespace lockstep::comm
