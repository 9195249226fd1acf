#include "comm/mpi/mpi_link.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
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
// As in tcp: how long a worker that ends waits until its peers have its notice, and its last
// message.
constexpr milliseconds kTellPatience{200};
constexpr milliseconds kPartPatience{3000};

// Each peer has queues of posts (core/posts.h). One mutex guards the peers, the posts and all calls
// of MPI, and nobody sleeps with it.
class MpiLink : public Link, public std::enable_shared_from_this<MpiLink> {
 public:
  explicit MpiLink(MpiFormed formed);
  ~MpiLink() override;

  int rank() const override { return formed_.rank; }
  int size() const override { return formed_.size; }
  std::string engine() const override { return "mpi"; }
  bool over_network() const override { return true; }
  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data, std::size_t bytes) override;
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override;
  void fail(const Failure& failure) noexcept override { end(failure, kTellPatience); }
  std::optional<Failure> failure() const override;
  void tell(const Failure& failure) noexcept override;
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override;
  void waits_for(int peer) noexcept override { waits_for_.store(peer, std::memory_order_relaxed); }
  std::optional<Failure> end_of(int peer) const override;

  bool wait(Post& post, Deadline deadline);
  void cancel(Post& post);
  void retire(Post& post);

 private:
  using Posted = PostTransfer<MpiLink>;

  MpiPeer& peer_at(int rank) const LOCKSTEP_REQUIRES(mutex_) {
    return *peers_[static_cast<std::size_t>(rank)];
  }
  bool over(const Post& post) const LOCKSTEP_REQUIRES(mutex_) { return post.settled() || failure_; }
  bool is_peer(int other) const { return other >= 0 && other < size() && other != rank(); }
  bool in_child() const { return ::getpid() != pid_; }  // of fork(): the world is its parent's

  void drive(const Post& post, Deadline deadline) LOCKSTEP_REQUIRES(mutex_);
  void pause(Clock::time_point idle_since, Deadline deadline) LOCKSTEP_REQUIRES(mutex_);
  bool progress() noexcept LOCKSTEP_REQUIRES(mutex_);
  bool take_arrivals() LOCKSTEP_REQUIRES(mutex_);
  bool move(MpiPeer& peer) noexcept LOCKSTEP_REQUIRES(mutex_);
  void tend();
  void hear(MpiPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  void end_peer(MpiPeer& peer, const Failure& failure) LOCKSTEP_REQUIRES(mutex_);
  void fail_locked(const Failure& failure) noexcept LOCKSTEP_REQUIRES(mutex_);
  void tell_locked(const Failure& failure) noexcept LOCKSTEP_REQUIRES(mutex_);
  void await_peers(bool (MpiPeer::*enough)() const, Deadline deadline) noexcept
      LOCKSTEP_REQUIRES(mutex_);
  void end(const Failure& failure, milliseconds patience) noexcept;
  void close() noexcept LOCKSTEP_REQUIRES(mutex_);

  const int pid_ = ::getpid();
  const MpiFormed formed_;
  std::atomic<int> waits_for_{kNoRank};
  mutable base::Mutex mutex_;
  // In memory of their own: a child of fork() must not destroy one in which a thread of its parent
  // sleeps.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::unique_ptr<std::condition_variable> stopped_ = std::make_unique<std::condition_variable>();
  std::vector<std::unique_ptr<MpiPeer>> peers_ LOCKSTEP_GUARDED_BY(mutex_);  // none for this worker
  struct State {
    bool driving = false;
    bool told = false;
    bool closed = false;  // MPI is not called any more
    bool stopping = false;
  };
  State state_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> tender_;  // last, because it uses the others
};

MpiLink::MpiLink(MpiFormed formed) : formed_(std::move(formed)) {
  try {
    {
      const base::Lock lock(mutex_);
      for (int other = 0; other < size(); ++other)
        peers_.push_back(other == rank() ? nullptr
                                         : std::make_unique<MpiPeer>(other, *formed_.communicator));
    }
    if (size() > 1) tender_ = std::make_unique<std::thread>([this] { tend(); });
  } catch (const std::exception& error) {
    fail(failure_of(rank(), error));  // for the others the world has formed: tell them
    throw;
  }
}

MpiLink::~MpiLink() {
  if (in_child()) {  // so are the threads
    static_cast<void>(tender_.release());
    static_cast<void>(changed_.release());
    static_cast<void>(stopped_.release());
    return;
  }
  end({ErrorKind::kPeerLost, {rank()}, fmt::format("rank {} has left the world", rank())},
      kPartPatience);
  {
    const base::Lock lock(mutex_);
    state_.stopping = true;
  }
  stopped_->notify_all();
  if (tender_) tender_->join();
}

std::unique_ptr<Transfer> MpiLink::send(int peer, Slot slot, const void* data, std::size_t bytes) {
  // Made first, and before the lock: if anything throws from here on, its destructor takes the post
  // back, which needs the lock.
  auto transfer = std::make_unique<Posted>(shared_from_this(), make_send(peer, slot, data, bytes));
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  MpiPeer& to = peer_at(peer);
  if (const auto& over = failure_ ? failure_ : to.failure) {
    post.fail(*over);
  } else {
    to.posts().sends.add(post);
    if (move(to)) changed_->notify_all();
  }
  return transfer;
}

std::unique_ptr<Transfer> MpiLink::recv(int peer, Slot slot, void* data, std::size_t bytes) {
  auto transfer = std::make_unique<Posted>(shared_from_this(),
                                           make_recv(peer, slot, data, bytes));  // as in send()
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  MpiPeer& from = peer_at(peer);
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
    if (move(from)) changed_->notify_all();
  } else if (over) {
    post.fail(*over);
  } else {
    from.posts().receives.wanted.push_back(&post);
  }
  return transfer;
}

bool MpiLink::wait(Post& post, Deadline deadline) {
  base::Lock lock(mutex_);
  if (!over(post)) progress();  // also if the deadline has passed already
  while (!over(post) && !deadline.expired()) {
    if (state_.driving) {
      lock.wait_until(*changed_, deadline.when());
    } else {
      drive(post, deadline);
    }
  }
  if (post.state == PostState::kFailed) raise(*post.failure);
  if (!post.settled() && failure_) raise(*failure_);
  return post.state == PostState::kDone;
}

void MpiLink::cancel(Post& post) {
  const base::Lock lock(mutex_);
  post.cancelled = true;
  changed_->notify_all();
}

// After this call nobody touches the post's memory.
void MpiLink::retire(Post& post) {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  if (post.state == PostState::kPosted) peer_at(post.peer).posts().retire(post);
}

// Asks for all threads that wait, until `post` is settled.
void MpiLink::drive(const Post& post, Deadline deadline) {
  state_.driving = true;
  auto idle_since = Clock::now();
  while (!over(post) && !deadline.expired()) {
    if (progress()) {
      idle_since = Clock::now();
    } else {
      pause(idle_since, deadline);
    }
  }
  state_.driving = false;
  changed_->notify_all();  // another thread can drive now
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
  if (state_.closed) return false;
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
  if (moved) changed_->notify_all();
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
  if (state_.closed) return false;
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

// As in tcp: a peer that has said why it ends has ended. One that gives up waiting for this worker
// is answered for whom this worker waits itself, so that it can follow the trail.
void MpiLink::hear(MpiPeer& peer) {
  if (!peer.said() || peer.failure) return;
  const Failure said = *peer.said();
  end_peer(peer, said);
  const int whom = waits_for_.load(std::memory_order_relaxed);
  const bool blamed = said.kind == ErrorKind::kTimeout && said.ranks == std::vector<int>{rank()};
  if (blamed && whom != kNoRank && whom != peer.rank())
    tell_locked(waiting_failure(rank(), whom, over_network()));
}

void MpiLink::end_peer(MpiPeer& peer, const Failure& failure) {
  if (peer.failure) return;
  peer.failure = failure;
  peer.posts().fail(failure);
  changed_->notify_all();
}

std::optional<Failure> MpiLink::failure() const {
  if (in_child()) return std::nullopt;
  const base::Lock lock(mutex_);
  return failure_;
}

std::optional<Failure> MpiLink::end_of(int peer) const {
  if (!is_peer(peer)) return std::nullopt;
  const base::Lock lock(mutex_);
  return peer_at(peer).failure;
}

std::optional<Failure> MpiLink::heard_from(int peer, Deadline deadline) noexcept {
  if (!is_peer(peer)) return std::nullopt;  // a peer may have named anybody
  base::Lock lock(mutex_);
  while (!peer_at(peer).said() && !peer_at(peer).failure && !deadline.expired())
    lock.wait_until(*changed_, deadline.when());
  return peer_at(peer).said();
}

void MpiLink::fail_locked(const Failure& failure) noexcept {
  if (failure_) return;
  failure_ = failure;
  for (const auto& peer : peers_) {
    if (peer) peer->posts().fail(failure);
  }
  tell_locked(failure);
  changed_->notify_all();
}

void MpiLink::tell_locked(const Failure& failure) noexcept {
  if (std::exchange(state_.told, true)) return;
  const std::string notice = encode_notice(failure);
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->tell(notice);
    move(*peer);
  }
  changed_->notify_all();
}

void MpiLink::tell(const Failure& failure) noexcept {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  tell_locked(failure);
  await_peers(&MpiPeer::told, Deadline::after(kTellPatience));
}

// Moves frames until each peer has heard enough.
void MpiLink::await_peers(bool (MpiPeer::*enough)() const, Deadline deadline) noexcept {
  const auto begun = Clock::now();
  const auto all = [&](const auto& peer) { return !peer || ((*peer).*enough)(); };
  while (!state_.closed && !std::all_of(peers_.begin(), peers_.end(), all) && !deadline.expired()) {
    if (!progress()) pause(begun, deadline);
  }
}

// Only the first call waits, even if the link has failed before it.
void MpiLink::end(const Failure& failure, milliseconds patience) noexcept {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  if (!formed_.process->usable()) state_.closed = true;
  fail_locked(failure);
  for (const auto& peer : peers_) {
    if (peer) peer->part();
  }
  await_peers(&MpiPeer::parted, Deadline::after(patience));
  close();
}

// What MPI still has is left to it.
void MpiLink::close() noexcept {
  if (std::exchange(state_.closed, true)) return;
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

// Looks after the peers while no other thread does.
void MpiLink::tend() {
  base::Lock lock(mutex_);
  while (!state_.stopping) {
    if (!state_.driving) progress();
    lock.wait_until(*stopped_, Clock::now() + kLook);
  }
}

}  // namespace

std::shared_ptr<Link> make_mpi_link(MpiFormed formed) {
  return std::make_shared<MpiLink>(std::move(formed));
}

}  // namespace lockstep::comm
