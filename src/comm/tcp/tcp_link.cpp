#include "comm/tcp/tcp_link.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/process.h"
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
// How long a worker that ends waits until its peers have its notice. A worker that leaves without a
// failure waits longer, because its last messages may still be in flight.
constexpr milliseconds kNoticePatience{200};
constexpr milliseconds kLeavePatience{3000};

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

// Each peer has queues of posts (core/posts.h). One mutex guards the peers and the posts. Sockets
// are read and written under it, too, for a while each, and nobody sleeps with it.
class TcpLink : public Link, public std::enable_shared_from_this<TcpLink> {
 public:
  explicit TcpLink(TcpWorld world);
  ~TcpLink() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string engine() const override { return "tcp"; }
  bool over_network() const override { return true; }
  std::optional<microseconds> patience_in_call() const override {
    return std::min(spin_, kPatienceInCall);
  }
  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data, std::size_t bytes) override;
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override;
  void fail(const Failure& failure) noexcept override { end(failure, kNoticePatience); }
  std::optional<Failure> failure() const override;
  void tell(const Failure& failure) noexcept override;
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override;
  void waits_for(int peer) noexcept override { waits_for_.store(peer, std::memory_order_relaxed); }
  void received_by(int peer, std::uint64_t messages) noexcept override;
  std::optional<Failure> end_of(int peer) const override;

  bool wait(Post& post, Deadline deadline);
  void cancel(Post& post);
  void retire(Post& post);

 private:
  using Posted = PostTransfer<TcpLink>;

  TcpPeer& peer_at(int rank) const LOCKSTEP_REQUIRES(mutex_) {
    return *peers_[static_cast<std::size_t>(rank)];
  }
  bool over(const Post& post) const LOCKSTEP_REQUIRES(mutex_) { return post.settled() || failure_; }
  bool is_peer(int rank) const { return rank >= 0 && rank < size_ && rank != rank_; }

  bool in_child() const { return process_.left(); }  // of fork(): the world is its parent's
  void add_peers(TcpWorld world);
  void spread_news() noexcept LOCKSTEP_REQUIRES(mutex_);
  // These give the mutex back while they sleep.
  void drive(const Post& post, Deadline deadline) LOCKSTEP_REQUIRES(mutex_);
  enum class Who { kDriver, kOther };
  bool progress(Who who, int wait_ms) LOCKSTEP_REQUIRES(mutex_);
  bool look(Who who, const Post& post) LOCKSTEP_REQUIRES(mutex_);
  void tell_waiters(Who who) noexcept LOCKSTEP_REQUIRES(mutex_);
  void tend();

  bool move(TcpPeer& peer, bool readable) LOCKSTEP_REQUIRES(mutex_);
  bool read_from(TcpPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  bool write_to(TcpPeer& peer) noexcept LOCKSTEP_REQUIRES(mutex_);
  void close(TcpPeer& peer) noexcept LOCKSTEP_REQUIRES(mutex_);
  void hear(TcpPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  void end_peer(TcpPeer& peer, const Failure& failure) LOCKSTEP_REQUIRES(mutex_);
  void fail_locked(const Failure& failure) noexcept LOCKSTEP_REQUIRES(mutex_);
  void tell_locked(const Failure& failure) noexcept LOCKSTEP_REQUIRES(mutex_);
  void await_receipts(Deadline deadline) noexcept LOCKSTEP_REQUIRES(mutex_);
  bool all_told() const LOCKSTEP_REQUIRES(mutex_);
  void end(const Failure& failure, milliseconds patience) noexcept;
  void beat(Clock::time_point now) LOCKSTEP_REQUIRES(mutex_);

  base::OriginalProcess process_;
  int rank_;
  int size_;
  microseconds spin_;
  std::atomic<int> waits_for_{kNoRank};
  mutable base::Mutex mutex_;
  // In memory of their own: a child of fork() must not destroy one in which a thread of its parent
  // sleeps.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::unique_ptr<std::condition_variable> stopped_ = std::make_unique<std::condition_variable>();
  std::vector<std::unique_ptr<TcpPeer>> peers_ LOCKSTEP_GUARDED_BY(mutex_);  // none for this worker
  std::optional<TcpPoll> poll_;
  struct State {
    bool driving = false;
    std::uint64_t drives = 0;
    std::uint64_t looks = 0;
    bool told = false;
    bool closed = false;
    bool stopping = false;
    Clock::time_point last_beat = Clock::now();
  };
  State state_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> tender_;  // last, because it uses the others
};

TcpLink::TcpLink(TcpWorld world)
    : rank_(world.rank), size_(world.size), spin_(world.crowded ? microseconds(0) : kSpin) {
  try {
    add_peers(std::move(world));
    if (size_ > 1) tender_ = std::make_unique<std::thread>([this] { tend(); });
  } catch (const std::exception& error) {
    fail(failure_of(rank_, error));  // for the others the world has formed: tell them
    throw;
  }
}

// First all of them, so that all can be told if the rest fails. The first sign of life goes at once:
// a peer that has never spoken cannot fall silent.
void TcpLink::add_peers(TcpWorld world) {
  const base::Lock lock(mutex_);
  for (int other = 0; other < size_; ++other) {
    auto& formed = world.peers[static_cast<std::size_t>(other)];
    peers_.push_back(other == rank_ ? nullptr
                                    : std::make_unique<TcpPeer>(other, std::move(formed)));
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

TcpLink::~TcpLink() {
  if (in_child()) {  // so are the threads
    static_cast<void>(tender_.release());
    static_cast<void>(changed_.release());
    static_cast<void>(stopped_.release());
    return;
  }
  end({ErrorKind::kPeerLost, {rank_}, fmt::format("rank {} has left the world", rank_)},
      kLeavePatience);
  {
    const base::Lock lock(mutex_);
    state_.stopping = true;
  }
  stopped_->notify_all();
  if (poll_) poll_->ring();
  if (tender_) tender_->join();
}

// Wakes all waiters, and the driver, which may sleep in poll_.
void TcpLink::spread_news() noexcept {
  changed_->notify_all();
  if (state_.driving) poll_->ring();
}

std::unique_ptr<Transfer> TcpLink::send(int peer, Slot slot, const void* data, std::size_t bytes) {
  // Made first, and before the lock: if anything throws from here on, its destructor takes the post
  // back, which needs the lock.
  auto transfer = std::make_unique<Posted>(shared_from_this(), make_send(peer, slot, data, bytes));
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  TcpPeer& to = peer_at(peer);
  if (const auto& over = failure_ ? failure_ : to.failure) {
    post.fail(*over);
  } else {
    to.posts().sends.add(post);
    if (write_to(to)) spread_news();
    if (post.state == PostState::kDone) transfer->set_done();
  }
  return transfer;
}

std::unique_ptr<Transfer> TcpLink::recv(int peer, Slot slot, void* data, std::size_t bytes) {
  auto transfer = std::make_unique<Posted>(shared_from_this(),
                                           make_recv(peer, slot, data, bytes));  // as in send()
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  TcpPeer& from = peer_at(peer);
  const auto& over = failure_ ? failure_ : from.failure;
  // A message that arrived whole before its sender ended is still delivered. One that was only
  // announced will never come.
  std::optional<EarlyMessage> first;
  if (!failure_) first = from.posts().receives.take_arrived(slot, from.failure.has_value());
  if (first) {
    try {
      from.posts().match(post, std::move(*first));
    } catch (const Error& error) {
      fail_locked(failure_from(error));
    }
    if (write_to(from)) spread_news();
  } else if (over) {
    post.fail(*over);
  } else {
    from.posts().receives.wanted.push_back(&post);
  }
  return transfer;
}

bool TcpLink::wait(Post& post, Deadline deadline) {
  base::Lock lock(mutex_);
  if (!state_.driving && !over(post)) {  // also if the deadline has passed already
    look(Who::kOther, post);
    ++state_.drives;
  }
  while (!over(post) && !deadline.expired()) {
    if (state_.driving) {
      lock.wait_until(*changed_, deadline.when());
      continue;
    }
    drive(post, deadline);
  }
  if (post.state == PostState::kFailed) raise(*post.failure);
  if (!post.settled() && failure_) raise(*failure_);
  return post.state == PostState::kDone;
}

void TcpLink::cancel(Post& post) {
  const base::Lock lock(mutex_);
  post.cancelled = true;
  spread_news();
}

// After this call nobody touches the post's memory.
void TcpLink::retire(Post& post) {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  if (post.state == PostState::kPosted) peer_at(post.peer).retire(post);
}

// Moves bytes for all threads that wait, until `post` is settled.
void TcpLink::drive(const Post& post, Deadline deadline) {
  struct Driving {  // whatever happens, another thread can drive afterwards
    explicit Driving(TcpLink& its_link) : link(its_link) { link.state_.driving = true; }
    ~Driving() {
      link.state_.driving = false;
      ++link.state_.drives;
      link.changed_->notify_all();
    }
    TcpLink& link;
  } const driving(*this);
  auto now = Clock::now();
  auto spins_until = now + spin_;
  while (!over(post) && now < deadline.when()) {
    beat(now);  // the link's own thread may find the mutex taken for long
    const bool moved =
        now < spins_until ? look(Who::kDriver, post) : progress(Who::kDriver, deadline.left_ms());
    now = Clock::now();
    if (moved) spins_until = now + spin_;
  }
}

// Without waiting: moves what the post needs. A receive needs one socket, and asking that one is
// faster than asking which sockets have something. Now and then all of them have their turn. True if
// something moved.
bool TcpLink::look(Who who, const Post& post) {
  if (post.sends || ++state_.looks % kLooksAtOnePeer == 0) return progress(who, 0);
  const bool moved = move(peer_at(post.peer), true);
  if (moved) tell_waiters(who);
  return moved;
}

// Something has moved, and a driver sleeps only if another thread has moved it.
void TcpLink::tell_waiters(Who who) noexcept {
  if (who == Who::kDriver) {
    changed_->notify_all();
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
    } else if (who == Who::kDriver || !state_.driving) {
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
    if (result == Result::kClosed && !failure_)
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
    fail_locked(failure_of(rank_, error));
  }
  return true;
}

bool TcpLink::write_to(TcpPeer& peer) noexcept {
  try {
    const bool wrote = peer.write();
    poll_->set_writable(peer.socket(), static_cast<std::size_t>(peer.rank()),
                        peer.wants_to_write());
    return wrote;
  } catch (const std::exception& error) {
    close(peer);  // what it was about to say is lost
    fail_locked(failure_of(rank_, error));
    return true;
  }
}

void TcpLink::close(TcpPeer& peer) noexcept {
  if (poll_) poll_->forget(peer.socket());
  peer.shut_down();
}

// If the peer has said why it ends, it has ended. One that gives up waiting for this worker is
// answered for whom this worker waits itself, so that it can follow the trail.
void TcpLink::hear(TcpPeer& peer) {
  if (!peer.said() || peer.failure) return;
  const Failure said = *peer.said();
  end_peer(peer, said);
  const int whom = waits_for_.load(std::memory_order_relaxed);
  const bool blamed = said.kind == ErrorKind::kTimeout && said.ranks == std::vector<int>{rank_};
  if (blamed && whom != kNoRank && whom != peer.rank())
    tell_locked(waiting_failure(rank_, whom, over_network()));
}

void TcpLink::end_peer(TcpPeer& peer, const Failure& failure) {
  if (peer.failure) return;
  peer.failure = failure;
  peer.fail_posts(failure);
  spread_news();
}

std::optional<Failure> TcpLink::failure() const {
  if (in_child()) return std::nullopt;
  const base::Lock lock(mutex_);
  return failure_;
}

void TcpLink::received_by(int peer, std::uint64_t messages) noexcept {
  const base::Lock lock(mutex_);
  peer_at(peer).posts().sends.received(messages);
}

std::optional<Failure> TcpLink::end_of(int peer) const {
  if (!is_peer(peer)) return std::nullopt;
  const base::Lock lock(mutex_);
  return peer_at(peer).failure;
}

std::optional<Failure> TcpLink::heard_from(int peer, Deadline deadline) noexcept {
  if (!is_peer(peer)) return std::nullopt;  // a peer may have named anybody
  base::Lock lock(mutex_);
  while (!peer_at(peer).said() && !peer_at(peer).failure && !deadline.expired())
    lock.wait_until(*changed_, deadline.when());
  return peer_at(peer).said();
}

void TcpLink::fail_locked(const Failure& failure) noexcept {
  if (failure_) return;
  failure_ = failure;
  for (const auto& peer : peers_) {
    if (peer) peer->fail_posts(failure);
  }
  tell_locked(failure);
  changed_->notify_all();
  if (poll_) poll_->ring();
}

void TcpLink::tell_locked(const Failure& failure) noexcept {
  if (std::exchange(state_.told, true)) return;
  const std::string notice = encode_notice(failure);
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->tell(notice);
    if (poll_) write_to(*peer);
  }
  spread_news();
}

void TcpLink::tell(const Failure& failure) noexcept {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  tell_locked(failure);
  await_receipts(Deadline::after(kNoticePatience));
}

void TcpLink::await_receipts(Deadline deadline) noexcept {
  while (!all_told() && !deadline.expired())
    progress(Who::kOther, std::min(deadline.left_ms(), 20));
}

bool TcpLink::all_told() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return !peer || peer->told(); });
}

// Only the first call waits, even if the link has failed before it.
void TcpLink::end(const Failure& failure, milliseconds patience) noexcept {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  fail_locked(failure);
  if (std::exchange(state_.closed, true)) return;
  if (poll_) await_receipts(Deadline::after(patience));
  for (const auto& peer : peers_) {
    if (peer) close(*peer);
  }
}

// Looks after the peers while no other thread does, and for a moment once in kStandBack in any case:
// a thread that finds its messages at once never looks at other peers.
void TcpLink::tend() {
  base::Lock lock(mutex_);
  std::uint64_t seen = 0;
  while (!state_.stopping) {
    beat(Clock::now());
    const bool others = state_.driving || state_.drives != seen;
    seen = state_.drives;
    if (others) {
      lock.wait_until(*stopped_, Clock::now() + kStandBack);
      progress(Who::kOther, 0);
    } else {
      progress(Who::kOther, static_cast<int>(kBeat.count()) / 4);
    }
  }
}

// Between hosts a cut network or a stopped host closes no connection. If this process itself has
// not run for a while, it is in no position to judge others. What has come already counts as heard.
void TcpLink::beat(Clock::time_point now) {
  if (failure_ || now - state_.last_beat < kBeat / 2) return;
  const bool was_away = now - state_.last_beat > kSilence / 2;
  state_.last_beat = now;
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
