// The common part of links that carry messages as frames (posts.h), one after the other to each peer: which
// messages are posted, who has ended and why, and which thread moves frames.
//
//   drive   a thread that waits for a transfer moves frames for all that wait; the others sleep
//   tend    while nobody waits, one thread of the link looks after the peers
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "base/process.h"
#include "comm/core/frame_peer.h"
#include "comm/core/link.h"

namespace lockstep::comm {

// An engine derives its link from it, and adds how frames are moved. One mutex guards the peers and the
// posts; nobody sleeps with it.
//
// Threads, Blocking, Failure, Ownership: as Link.
class FrameLink : public Link, public std::enable_shared_from_this<FrameLink> {
 public:
  ~FrameLink() override;
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  bool over_network() const final { return true; }
  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data, std::size_t bytes) final;
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) final;
  std::optional<Failure> failure() const final;
  void tell(const Failure& failure) noexcept final;
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept final;
  void waits_for(int peer) noexcept final { waits_for_.store(peer, std::memory_order_relaxed); }
  std::optional<Failure> end_of(int peer) const final;

  // For transfers.
  bool wait(Post& post, Deadline deadline);
  void cancel(Post& post);
  void retire(Post& post);

 protected:
  // How long a worker that ends waits until its peers have its notice. A worker that leaves without a
  // failure waits longer, because its last messages may still be in flight.
  static constexpr std::chrono::milliseconds kNoticePatience{200};
  static constexpr std::chrono::milliseconds kLeavePatience{3000};

  FrameLink(int rank, int size) : rank_(rank), size_(size) {}

  // What the engine adds. All but tend() are called with the mutex held; look(), drive() and
  // await_told() may give it back for a while.

  // Null for this worker, and while there is none yet.
  virtual FramePeer* peer(int rank) const noexcept LOCKSTEP_REQUIRES(mutex_) = 0;
  // Moves what can be moved to a peer at once, and over some engines from it. It may end the peer. True
  // if something was moved.
  virtual bool push(int peer) noexcept LOCKSTEP_REQUIRES(mutex_) = 0;
  // Moves at once what the post needs. Another thread may drive.
  virtual void look(const Post& post) LOCKSTEP_REQUIRES(mutex_) = 0;
  // Moves frames for all, until the post is over or the deadline has come.
  virtual void drive(const Post& post, Deadline deadline) LOCKSTEP_REQUIRES(mutex_) = 0;
  // Moves frames until all_told(), at most until the deadline.
  virtual void await_told(Deadline deadline) noexcept LOCKSTEP_REQUIRES(mutex_) = 0;
  // Wakes all threads that wait. An engine whose driver sleeps otherwise wakes it, too.
  virtual void spread_news() noexcept LOCKSTEP_REQUIRES(mutex_) { changed_->notify_all(); }
  // What the link's own thread does until stopping().
  virtual void tend() = 0;

  // What the engine uses. Call start_tending() last in its constructor, and stop_tending() in its
  // destructor: the thread calls the functions above.
  void start_tending();
  void stop_tending();
  bool stopping() const LOCKSTEP_REQUIRES(mutex_) { return state_.stopping; }
  // The thread sleeps in `lock` until then, or until it is to stop.
  void nap(base::Lock& lock, Deadline::Clock::time_point until) LOCKSTEP_REQUIRES(mutex_) {
    lock.wait_until(*stopped_, until);
  }

  bool in_child() const { return process_.left(); }  // of fork(): the world is its parent's
  bool is_peer(int other) const { return other >= 0 && other < size_ && other != rank_; }
  bool driving() const LOCKSTEP_REQUIRES(mutex_) { return state_.driving; }
  bool failed() const LOCKSTEP_REQUIRES(mutex_) { return failure_.has_value(); }
  bool over(const Post& post) const LOCKSTEP_REQUIRES(mutex_) { return post.settled() || failure_; }
  bool all_told() const LOCKSTEP_REQUIRES(mutex_);
  // A peer that has said why it ends has ended.
  void hear(FramePeer& other) LOCKSTEP_REQUIRES(mutex_);
  void end_peer(FramePeer& other, const Failure& failure) LOCKSTEP_REQUIRES(mutex_);
  // Ends the link, and tells the peers.
  void fail_locked(const Failure& failure) noexcept LOCKSTEP_REQUIRES(mutex_);
  // The failure of a link that is destroyed and had none.
  Failure left_world() const;

  mutable base::Mutex mutex_;

 private:
  using Posted = PostTransfer<FrameLink>;
  struct Driving;

  void tell_locked(const Failure& failure) noexcept LOCKSTEP_REQUIRES(mutex_);

  base::OriginalProcess process_;
  const int rank_;
  const int size_;
  std::atomic<int> waits_for_{kNoRank};
  // In memory of their own: a child of fork() must not destroy one in which a thread of its parent
  // sleeps.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::unique_ptr<std::condition_variable> stopped_ = std::make_unique<std::condition_variable>();
  struct State {
    bool driving = false;
    bool told = false;
    bool stopping = false;
  };
  State state_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> tender_;
};

}  // namespace lockstep::comm
