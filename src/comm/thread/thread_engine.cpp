// A hub holds the sends and receives that have no counterpart yet. The thread that posts the second
// of a pair copies the bytes, outside the lock, from the sender's memory to the receiver's.
#include "comm/thread/thread_engine.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/mutex.h"

namespace lockstep::comm {
namespace {

enum class State { kPosted, kCopying, kDone, kFailed };
enum class Direction { kSend, kRecv };

// The hub's mutex guards what changes: state, cancelled and failure.
struct Post {
  int owner = 0;
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
  State state = State::kPosted;
  bool cancelled = false;
  std::optional<Failure> failure;
};

// What the links of all threads share. One mutex guards everything, except the bytes that are being
// copied: both posts are kCopying then, and retire() waits for that.
class Hub {
 public:
  explicit Hub(int size) : size_(size), members_(size), told_(size), waits_for_(size) {
    for (auto& peer : waits_for_) peer.store(kNoRank);
  }

  int size() const { return size_; }

  std::shared_ptr<Post> post(Direction direction, Slot slot, Post wanted) {
    const base::Lock lock(mutex_);
    auto mine = std::make_shared<Post>(std::move(wanted));
    if (const auto failure = failure_between(mine->owner, mine->peer)) {
      mine->state = State::kFailed;
      mine->failure = failure;
      return mine;
    }
    const bool sends = direction == Direction::kSend;
    const auto found = lines_
                           .try_emplace(sends ? Key{mine->owner, mine->peer, slot}
                                              : Key{mine->peer, mine->owner, slot})
                           .first;
    Line& line = found->second;
    auto& counterparts = sends ? line.recvs : line.sends;
    if (counterparts.empty()) {
      (sends ? line.sends : line.recvs).push_back(mine);
      return mine;
    }
    const auto theirs = counterparts.front();
    counterparts.pop_front();
    if (counterparts.empty()) lines_.erase(found);  // slots of an operation are not used again
    copy(sends ? *mine : *theirs, sends ? *theirs : *mine);
    return mine;
  }

  bool wait(Post& post, Deadline deadline) {
    base::Lock lock(mutex_);
    while (post.state != State::kDone && post.state != State::kFailed && !post.cancelled) {
      if (!lock.wait_until(changed_, deadline.when())) break;
    }
    if (post.state == State::kFailed) raise(*post.failure);
    return post.state == State::kDone;
  }

  void cancel(Post& post) {
    const base::Lock lock(mutex_);
    post.cancelled = true;
    changed_.notify_all();
  }

  // After this call nobody touches the post's memory.
  void retire(const std::shared_ptr<Post>& post) {
    base::Lock lock(mutex_);
    while (post->state == State::kCopying) lock.wait(changed_);
    if (post->state != State::kPosted) return;
    for (auto& [key, line] : lines_) {
      std::erase(line.sends, post);
      std::erase(line.recvs, post);
    }
  }

  void fail(int rank, const Failure& failure) {
    const base::Lock lock(mutex_);
    if (!members_[rank]) end_member(rank, failure);
  }

  void leave(int rank) {
    fail(rank, {ErrorKind::kPeerLost, {rank}, fmt::format("rank {} has left the world", rank)});
  }

  std::optional<Failure> failure(int rank) {
    const base::Lock lock(mutex_);
    return members_[rank];
  }

  void tell(int rank, const Failure& failure) {
    const base::Lock lock(mutex_);
    if (!told_[rank]) told_[rank] = failure;
    if (failure.kind == ErrorKind::kTimeout && failure.ranks.size() == 1) answer(failure.ranks[0]);
    changed_.notify_all();
  }

  void waits_for(int rank, int peer) { waits_for_[rank].store(peer, std::memory_order_relaxed); }

  std::optional<Failure> heard_from(int rank, Deadline deadline) {
    base::Lock lock(mutex_);
    while (!told_[rank] && lock.wait_until(changed_, deadline.when())) continue;
    return told_[rank];
  }

 private:
  using Key = std::tuple<int, int, Slot>;  // sender, receiver, slot
  struct Line {
    std::deque<std::shared_ptr<Post>> sends;
    std::deque<std::shared_ptr<Post>> recvs;
  };

  // A worker that is blamed and waits itself tells for whom it waits, and so on to the end of the
  // trail.
  void answer(int blamed) LOCKSTEP_REQUIRES(mutex_) {
    while (blamed >= 0 && blamed < size() && !told_[blamed]) {
      const int whom = waits_for_[blamed].load(std::memory_order_relaxed);
      if (whom == kNoRank) return;
      told_[blamed] = waiting_failure(blamed, whom, false);
      blamed = whom;
    }
  }

  void copy(Post& from, Post& to) LOCKSTEP_REQUIRES(mutex_) {
    LOCKSTEP_CHECK(from.bytes <= to.bytes, "a header has said how much room a message needs");
    from.state = to.state = State::kCopying;
    {
      const base::Unlock unlocked(mutex_);
      std::memcpy(to.data, from.data, from.bytes);
    }
    from.state = to.state = State::kDone;
    changed_.notify_all();
  }

  std::optional<Failure> failure_between(int rank, int peer) const LOCKSTEP_REQUIRES(mutex_) {
    return members_[rank] ? members_[rank] : members_[peer];
  }

  // Posts of the member that has ended, and posts that wait for it, will never get a counterpart.
  void end_member(int rank, const Failure& failure) LOCKSTEP_REQUIRES(mutex_) {
    members_[rank] = failure;
    if (!told_[rank]) told_[rank] = failure;
    for (auto& [key, line] : lines_) {
      for (auto* queue : {&line.sends, &line.recvs}) {
        for (const auto& post : *queue) {
          if (post->owner != rank && post->peer != rank) continue;
          post->state = State::kFailed;
          post->failure = failure;
        }
        std::erase_if(*queue, [](const auto& post) { return post->state == State::kFailed; });
      }
    }
    changed_.notify_all();
  }

  int size_;
  base::Mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Line> lines_ LOCKSTEP_GUARDED_BY(mutex_);
  // Why each has ended, if it has.
  std::vector<std::optional<Failure>> members_ LOCKSTEP_GUARDED_BY(mutex_);
  // What each has said before it ended.
  std::vector<std::optional<Failure>> told_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::atomic<int>> waits_for_;  // whom, or kNoRank
};

class ThreadTransfer : public Transfer {
 public:
  ThreadTransfer(std::shared_ptr<Hub> hub, std::shared_ptr<Post> post)
      : hub_(std::move(hub)), post_(std::move(post)) {}
  ~ThreadTransfer() override { hub_->retire(post_); }

  bool wait(Deadline deadline) override { return hub_->wait(*post_, deadline); }
  void cancel() override { hub_->cancel(*post_); }

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Post> post_;
};

class ThreadLink : public Link {
 public:
  ThreadLink(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadLink() override { hub_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  std::string engine() const override { return "thread"; }

  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data,
                                 std::size_t bytes) override {
    // The hub only reads from a sender's memory.
    return post(Direction::kSend, peer, slot, const_cast<void*>(data), bytes);
  }
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override {
    return post(Direction::kRecv, peer, slot, data, bytes);
  }
  void fail(const Failure& failure) noexcept override { hub_->fail(rank_, failure); }
  std::optional<Failure> failure() const override { return hub_->failure(rank_); }
  void tell(const Failure& failure) noexcept override { hub_->tell(rank_, failure); }
  void waits_for(int peer) noexcept override { hub_->waits_for(rank_, peer); }
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override {
    if (peer < 0 || peer >= size() || peer == rank_)
      return std::nullopt;  // a peer may have named anybody
    return hub_->heard_from(peer, deadline);
  }

 private:
  std::unique_ptr<Transfer> post(Direction direction, int peer, Slot slot, void* data,
                                 std::size_t bytes) {
    return std::make_unique<ThreadTransfer>(
        hub_, hub_->post(direction, slot, Post{rank_, peer, data, bytes}));
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Link>> make_thread_links(int size) {
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::shared_ptr<Link>> links;
  links.reserve(size);
  for (int rank = 0; rank < size; ++rank) links.push_back(std::make_shared<ThreadLink>(hub, rank));
  return links;
}

}  // namespace lockstep::comm
