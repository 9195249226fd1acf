#include "comm/shm/shm_link.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <utility>

#include "base/mutex.h"
#include "comm/shm/shm_board.h"
#include "comm/shm/shm_peer.h"
#include "comm/shm/shm_workers.h"

namespace lockstep::comm {
namespace {

// Fewer bytes of a long message are not worth a frame.
constexpr std::size_t kLeastData = 4096;
// How often to look at the doorbell before sleeping; 20 to 100 µs, as long as a pause is. If there
// are more workers than cores, another worker needs the core.
constexpr int kSpins = 2000;
constexpr int kSpinsWhenCrowded = 20;
// At a board a worker mostly waits for others that come within this time. Sleeping and waking
// would take about as long, and a woken worker would come late to the next meeting.
constexpr std::chrono::milliseconds kYieldingAtBoards{1};

// Each peer has queues of posts (core/posts.h). One mutex guards the queues and the posts; memory of
// peers is read and written under it, too, in stretches of at most one ring, and nobody sleeps with
// it.
class ShmLink : public Link, public std::enable_shared_from_this<ShmLink> {
 public:
  explicit ShmLink(ShmWorld world);
  ~ShmLink() override;

  int rank() const override { return workers_.rank(); }
  int size() const override { return workers_.size(); }
  std::string engine() const override { return "shm"; }
  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data, std::size_t bytes) override;
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override;
  void fail(const Failure& failure) noexcept override;
  std::optional<Failure> failure() const override;
  void tell(const Failure& failure) noexcept override;
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override {
    return workers_.heard_from(peer, deadline);
  }
  std::optional<Failure> end_of(int rank) const override { return workers_.end_of(rank); }
  Host* host() override { return &host_; }
  std::unique_ptr<Board> make_board(std::uint64_t group, std::span<const int> members) override {
    return boards_->make(group, members);
  }

  bool wait(Post& post, Deadline deadline);
  void cancel(Post& post);
  void retire(Post& post);

 private:
  using Posted = PostTransfer<ShmLink>;

  SegmentHead& own() const { return workers_.own().head(); }
  ShmPeer& peer_at(int rank) LOCKSTEP_REQUIRES(mutex_) {
    return *peers_[static_cast<std::size_t>(rank)];
  }
  // Nothing will happen to the post any more. If memory ran out, a post may have been lost on its
  // way from one queue to another. Then only the link's failure says so.
  bool over(const Post& post) const LOCKSTEP_REQUIRES(mutex_) { return post.settled() || failure_; }

  void equip(ShmWorld world);
  void add_peers();
  // These two give the mutex back while they sleep.
  void drive(const Post& post, Deadline deadline) LOCKSTEP_REQUIRES(mutex_);
  void sleep(std::uint32_t seen, Deadline deadline) LOCKSTEP_REQUIRES(mutex_);
  bool move_all() LOCKSTEP_REQUIRES(mutex_);
  bool read_from(ShmPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  void handle(ShmPeer& peer, const Frame& frame) LOCKSTEP_REQUIRES(mutex_);
  void take_message(ShmPeer& peer, const Frame& frame) LOCKSTEP_REQUIRES(mutex_);
  void take_data(ShmPeer& peer, const Frame& frame) LOCKSTEP_REQUIRES(mutex_);
  void match(ShmPeer& peer, Post& post, EarlyMessage arrival) LOCKSTEP_REQUIRES(mutex_);
  bool write_to(ShmPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  bool begin_sends(ShmPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  bool stream_sends(ShmPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  void look_at_life(ShmPeer& peer) LOCKSTEP_REQUIRES(mutex_);
  std::optional<Failure> trouble_with(int rank) const;
  void end_peer(ShmPeer& peer, const Failure& failure) LOCKSTEP_REQUIRES(mutex_);
  void fail_locked(const Failure& failure) noexcept LOCKSTEP_REQUIRES(mutex_);
  void settle(Post& post) LOCKSTEP_REQUIRES(mutex_);
  void spread_news() LOCKSTEP_REQUIRES(mutex_);
  [[noreturn]] void refuse(const ShmPeer& peer, const char* what) const;

  int pid_ = ::getpid();
  ShmWorkers workers_;
  int spins_ = 0;
  Host host_;
  std::unique_ptr<Boards> boards_;
  mutable base::Mutex mutex_;
  std::condition_variable changed_;
  // None for this worker.
  std::vector<std::unique_ptr<ShmPeer>> peers_ LOCKSTEP_GUARDED_BY(mutex_);
  bool driving_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // A post was settled that another thread may wait for.
  bool news_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<ShmMonitor> watcher_;  // last, because its thread uses the others
};

ShmLink::ShmLink(ShmWorld world) : workers_(world.rank, std::move(world.segments)) {
  try {
    equip(std::move(world));
  } catch (const std::exception& error) {
    fail(failure_of(rank(), error));  // for the others the world has formed: tell them
    throw;
  }
}

void ShmLink::equip(ShmWorld world) {
  const bool crowded = workers_.crowded();
  spins_ = crowded ? kSpinsWhenCrowded : kSpins;
  host_.secret = std::move(world.secret);
  host_.world = std::move(world.name);
  std::vector<std::byte*> staging;
  std::vector<const Segment*> segments;
  for (const Segment& segment : workers_.segments()) {
    staging.push_back(segment.staging());
    segments.push_back(&segment);
  }
  host_.staging.emplace(std::move(staging), rank());
  const Patience patience{spins_, crowded ? std::chrono::milliseconds(0) : kYieldingAtBoards};
  boards_ = std::make_unique<Boards>(BoardSetting{
      std::move(segments), rank(), patience, [this](int other) { return trouble_with(other); }});
  add_peers();
  watcher_ = std::make_unique<ShmMonitor>(std::move(world.watched),
                                          [this](int other) { workers_.note_death(other); });
}

void ShmLink::add_peers() {
  const base::Lock lock(mutex_);
  for (int other = 0; other < size(); ++other) {
    peers_.push_back(other == rank() ? nullptr
                                     : std::make_unique<ShmPeer>(workers_.of(other), workers_.own(),
                                                                 rank(), other));
  }
}

ShmLink::~ShmLink() {
  if (::getpid() != pid_) {  // a child of fork(): the world is its parent's, and so is the thread
    static_cast<void>(watcher_.release());
    return;
  }
  fail({ErrorKind::kPeerLost, {rank()}, fmt::format("rank {} has left the world", rank())});
}

std::unique_ptr<Transfer> ShmLink::send(int peer, Slot slot, const void* data, std::size_t bytes) {
  // Made first, and before the lock: if anything throws from here on, its destructor takes the post
  // back, which needs the lock.
  auto transfer = std::make_unique<Posted>(shared_from_this(), make_send(peer, slot, data, bytes));
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  ShmPeer& to = peer_at(peer);
  if (const auto& failure = failure_ ? failure_ : to.failure) {
    post.fail(*failure);
  } else {
    to.posts.sends.add(post);
    if (write_to(to)) to.segment->ring_bell();
    spread_news();
  }
  return transfer;
}

std::unique_ptr<Transfer> ShmLink::recv(int peer, Slot slot, void* data, std::size_t bytes) {
  auto transfer = std::make_unique<Posted>(shared_from_this(),
                                           make_recv(peer, slot, data, bytes));  // as in send()
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  ShmPeer& from = peer_at(peer);
  const auto& over = failure_ ? failure_ : from.failure;
  // A message that arrived whole before its sender ended is still delivered. One that was only
  // announced will never come.
  std::optional<EarlyMessage> first;
  if (!failure_) first = from.posts.receives.take_arrived(slot, from.failure.has_value());
  if (first) {
    try {
      match(from, post, std::move(*first));
    } catch (const Error& error) {
      fail_locked(failure_from(error));
    }
    if (write_to(from)) from.segment->ring_bell();
    spread_news();
  } else if (over) {
    post.fail(*over);
  } else {
    from.posts.receives.wanted.push_back(&post);
  }
  return transfer;
}

bool ShmLink::wait(Post& post, Deadline deadline) {
  base::Lock lock(mutex_);
  if (!driving_ && !over(post)) {  // also if the deadline has passed already
    move_all();
    spread_news();
  }
  while (!over(post) && !deadline.expired()) {
    if (driving_) {
      lock.wait_until(changed_, deadline.when());
      continue;
    }
    drive(post, deadline);
  }
  if (post.state == PostState::kFailed) raise(*post.failure);
  if (!post.settled() && failure_) raise(*failure_);
  return post.state == PostState::kDone;
}

void ShmLink::cancel(Post& post) {
  const base::Lock lock(mutex_);
  post.cancelled = true;
  changed_.notify_all();
  workers_.own().ring_bell();
}

// Moves bytes for all threads that wait, until `post` is settled. The bell is read before the
// rings: if a peer rings after that, sleep() returns at once.
void ShmLink::drive(const Post& post, Deadline deadline) {
  struct Driving {  // whatever happens, another thread can drive afterwards
    explicit Driving(ShmLink& its_link) : link(its_link) { link.driving_ = true; }
    ~Driving() {
      link.driving_ = false;
      link.changed_.notify_all();
    }
    ShmLink& link;
  } const driving(*this);
  while (!over(post) && !deadline.expired()) {
    const std::uint32_t seen = own().doorbell.rung.load(std::memory_order_seq_cst);
    const bool moved = move_all();
    spread_news();
    if (moved) continue;
    if (!over(post)) sleep(seen, deadline);
  }
}

void ShmLink::sleep(std::uint32_t seen, Deadline deadline) {
  const base::Unlock unlocked(mutex_);
  own().doorbell.sleep(seen, spins_, deadline);
}

// True if something moved, in or out.
bool ShmLink::move_all() {
  bool moved = false;
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    ShmPeer& peer = peer_at(other);
    if (peer.failure) continue;
    moved = read_from(peer) || moved;
    if (!peer.failure && write_to(peer)) {
      peer.segment->ring_bell();
      moved = true;
    }
  }
  return moved;
}

// What a peer wrote before it ended is still read: the end is looked at first, the ring after it.
bool ShmLink::read_from(ShmPeer& peer) {
  const bool over = peer.segment->head().ended.there.load(std::memory_order_acquire) != 0 ||
                    workers_.is_dead(peer.rank);
  const std::size_t most = peer.segment->ring_bytes();  // at a time: others wait for the lock
  std::size_t taken = 0;
  std::size_t told = 0;
  bool read = false;
  try {
    for (auto frame = peer.in.peek(); frame && taken < most; frame = peer.in.peek()) {
      handle(peer, *frame);
      read = true;
      taken += sizeof(Frame) + frame->bytes;
      // Rings before the ring is empty, so that both sides copy at the same time.
      if (taken - told > most / 4 && peer.in.writer_starves()) {
        told = taken;
        peer.segment->ring_bell();
      }
    }
  } catch (const Error& error) {
    fail_locked(failure_from(error));
    return true;
  } catch (const std::exception& error) {
    fail_locked(failure_of(rank(), error));
    return true;
  }
  if (read && peer.in.writer_starves()) peer.segment->ring_bell();
  if (taken >= most) return true;
  if (over) {
    look_at_life(peer);
    return true;
  }
  return read;
}

void ShmLink::look_at_life(ShmPeer& peer) {
  if (const auto end = end_of(peer.rank)) end_peer(peer, *end);
}

std::optional<Failure> ShmLink::trouble_with(int rank) const {
  auto own = failure();
  return own ? own : end_of(rank);
}

void ShmLink::handle(ShmPeer& peer, const Frame& frame) {
  switch (frame.kind) {
    case Frame::Kind::kMessage:
    case Frame::Kind::kAsk:
      return take_message(peer, frame);
    case Frame::Kind::kData:
      return take_data(peer, frame);
    case Frame::Kind::kGrant:
      break;
  }
  peer.in.take(frame, nullptr);
  peer.posts.sends.granted(frame.number);
}

void ShmLink::take_message(ShmPeer& peer, const Frame& frame) {
  EarlyMessage arrival{frame.number, frame.total, frame.kind == Frame::Kind::kAsk, {}};
  if (!arrival.announced && frame.bytes != frame.total) refuse(peer, "is not as long as it says");
  arrival.bytes.resize(frame.bytes);  // first: it may throw
  if (Post* const post = peer.posts.receives.take_wanted(frame.slot)) {
    if (!arrival.announced && frame.total <= post->bytes) {
      peer.in.take(frame, post->data);
      return settle(*post);
    }
    peer.in.take(frame, arrival.bytes.data());
    return match(peer, *post, std::move(arrival));
  }
  peer.in.take(frame, arrival.bytes.data());
  peer.posts.receives.arrived.emplace(frame.slot, std::move(arrival));
}

void ShmLink::match(ShmPeer& peer, Post& post, EarlyMessage arrival) {
  news_ = true;
  peer.posts.match(post, std::move(arrival));
}

void ShmLink::take_data(ShmPeer& peer, const Frame& frame) {
  const auto found = peer.posts.receives.granted.find(frame.number);
  if (found == peer.posts.receives.granted.end()) return peer.in.take(frame, nullptr);  // withdrawn
  Post& post = *found->second;
  if (frame.bytes > post.total - post.moved) refuse(peer, "is longer than it says");
  peer.in.take(frame, post.data + post.moved);
  post.moved += frame.bytes;
  if (post.moved < post.total) return;
  settle(post);
  peer.posts.receives.granted.erase(found);
}

// True if something was written.
bool ShmLink::write_to(ShmPeer& peer) {
  bool wrote = false;
  while (!peer.posts.receives.grants.empty() && peer.out.room(0)) {
    const Grant& grant = peer.posts.receives.grants.front();
    peer.out.write({Frame::Kind::kGrant, 0, grant.slot, grant.number, grant.total}, nullptr);
    peer.posts.receives.grants.pop_front();
    wrote = true;
  }
  if (!peer.posts.receives.grants.empty()) return wrote;
  wrote = begin_sends(peer) || wrote;
  if (!peer.posts.sends.to_begin.empty())
    return wrote;  // or a stream would take the room that a short one waits for
  return stream_sends(peer) || wrote;
}

bool ShmLink::begin_sends(ShmPeer& peer) {
  bool wrote = false;
  while (!peer.posts.sends.to_begin.empty()) {
    Post* const post = peer.posts.sends.to_begin.front();
    if (!peer.out.room(post->asks ? 0 : post->bytes)) break;
    peer.posts.sends.to_begin.pop_front();
    Frame frame{Frame::Kind::kMessage, static_cast<std::uint32_t>(post->bytes), post->slot,
                post->number, post->bytes};
    if (!post->asks) {
      peer.out.write(frame, post->data);
      settle(*post);
    } else {
      frame.kind = Frame::Kind::kAsk;
      frame.bytes = 0;
      peer.out.write(frame, nullptr);
      peer.posts.sends.asked[post->number] = post;
    }
    wrote = true;
  }
  return wrote;
}

bool ShmLink::stream_sends(ShmPeer& peer) {
  bool wrote = false;
  while (!peer.posts.sends.streaming.empty()) {
    Post* const post = peer.posts.sends.streaming.front();
    const std::size_t left = post->bytes - post->moved;
    const auto room = peer.out.room(std::min(left, kLeastData));
    if (!room) break;
    const std::size_t part = std::min({left, *room, std::size_t{peer.segment->ring_bytes()} / 4});
    peer.out.write({Frame::Kind::kData, static_cast<std::uint32_t>(part), post->slot, post->number,
                    post->bytes},
                   post->data + post->moved);
    post->moved += part;
    wrote = true;
    if (post->moved < post->bytes) continue;
    settle(*post);
    peer.posts.sends.streaming.pop_front();
  }
  return wrote;
}

// After this call nobody touches the post's memory.
void ShmLink::retire(Post& post) {
  if (::getpid() != pid_) return;  // as in fail()
  const base::Lock lock(mutex_);
  if (post.state != PostState::kPosted) return;
  peer_at(post.peer).posts.retire(post);
}

void ShmLink::settle(Post& post) {
  post.state = PostState::kDone;
  news_ = true;
}

// Wakes the threads whose posts may have been settled.
void ShmLink::spread_news() {
  if (std::exchange(news_, false)) changed_.notify_all();
}

void ShmLink::refuse(const ShmPeer& peer, const char* what) const {
  throw Mismatch(
      fmt::format("a message of rank {} in shared memory {}: it is broken, or of another build",
                  peer.rank, what),
      {peer.rank});
}

void ShmLink::end_peer(ShmPeer& peer, const Failure& failure) {
  if (peer.failure) return;
  peer.failure = failure;
  peer.posts.fail(failure);
  changed_.notify_all();
}

void ShmLink::fail(const Failure& failure) noexcept {
  if (::getpid() != pid_) return;  // a child of fork(): the world is its parent's
  const base::Lock lock(mutex_);
  fail_locked(failure);
}

void ShmLink::fail_locked(const Failure& failure) noexcept {
  if (failure_) return;
  failure_ = failure;
  publish(own().told, failure);
  publish(own().ended, failure);
  for (const auto& peer : peers_) {
    if (peer) peer->posts.fail(failure);
  }
  changed_.notify_all();
  for (const Segment& segment : workers_.segments()) {
    segment.ring_bell();
    segment.ring_board_bell();
  }
}

std::optional<Failure> ShmLink::failure() const {
  const base::Lock lock(mutex_);
  return failure_;
}

void ShmLink::tell(const Failure& failure) noexcept {
  if (::getpid() != pid_) return;  // as in fail()
  const base::Lock lock(mutex_);
  publish(own().told, failure);
}

}  // namespace

std::shared_ptr<Link> make_shm_link(ShmWorld world) {
  return std::make_shared<ShmLink>(std::move(world));
}

}  // namespace lockstep::comm
