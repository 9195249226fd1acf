#include "comm/core/frame_link.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace lockstep::comm {

FrameLink::~FrameLink() {
  LOCKSTEP_CHECK(!tender_, "a link has ended, and its thread has not");
}

void FrameLink::start_tending() {
  if (size_ > 1) tender_ = std::make_unique<std::thread>([this] { tend(); });
}

void FrameLink::stop_tending() {
  if (in_child()) {  // the threads are the parent's, too
    static_cast<void>(tender_.release());
    static_cast<void>(changed_.release());
    static_cast<void>(stopped_.release());
    return;
  }
  {
    const base::Lock lock(mutex_);
    state_.stopping = true;
    spread_news();
  }
  stopped_->notify_all();
  if (tender_) tender_->join();
  tender_.reset();
}

std::unique_ptr<Transfer> FrameLink::send(int to, Slot slot, const void* data, std::size_t bytes) {
  // Made first, and before the lock: if anything throws from here on, its destructor takes the post
  // back, which needs the lock.
  auto transfer = std::make_unique<Posted>(shared_from_this(), make_send(to, slot, data, bytes));
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  FramePeer& receiver = *peer(to);
  if (const auto& over = failure_ ? failure_ : receiver.failure) {
    post.fail(*over);
  } else {
    receiver.posts().sends.add(post);
    if (push(to)) spread_news();
    if (post.state == PostState::kDone) transfer->set_done();
  }
  return transfer;
}

std::unique_ptr<Transfer> FrameLink::recv(int from, Slot slot, void* data, std::size_t bytes) {
  auto transfer = std::make_unique<Posted>(shared_from_this(),
                                           make_recv(from, slot, data, bytes));  // as in send()
  Post& post = transfer->post();
  const base::Lock lock(mutex_);
  FramePeer& sender = *peer(from);
  const auto& over = failure_ ? failure_ : sender.failure;
  // A message that arrived whole before its sender ended is still delivered. One that was only
  // announced will never come.
  std::optional<EarlyMessage> first;
  if (!failure_) first = sender.posts().receives.take_arrived(slot, sender.failure.has_value());
  if (first) {
    try {
      sender.posts().match(post, std::move(*first));
    } catch (const Error& error) {
      fail_locked(failure_from(error));
    }
    if (push(from)) spread_news();
  } else if (over) {
    post.fail(*over);
  } else {
    sender.posts().receives.wanted.push_back(&post);
  }
  return transfer;
}

// Whatever happens, another thread can drive afterwards.
struct FrameLink::Driving {
  explicit Driving(FrameLink& its_link) : link(its_link) { link.state_.driving = true; }
  ~Driving() {
    link.state_.driving = false;
    link.changed_->notify_all();
  }
  FrameLink& link;
};

bool FrameLink::wait(Post& post, Deadline deadline) {
  base::Lock lock(mutex_);
  if (!over(post)) look(post);  // also if the deadline has passed already
  while (!over(post) && !deadline.expired()) {
    if (state_.driving) {
      lock.wait_until(*changed_, deadline.when());
      continue;
    }
    const Driving scope(*this);
    drive(post, deadline);
  }
  if (post.state == PostState::kFailed) raise(*post.failure);
  if (!post.settled() && failure_) raise(*failure_);
  return post.state == PostState::kDone;
}

void FrameLink::cancel(Post& post) {
  const base::Lock lock(mutex_);
  post.cancelled = true;
  spread_news();
}

// After this call nobody touches the post's memory.
void FrameLink::retire(Post& post) {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  if (post.state == PostState::kPosted) peer(post.peer)->retire(post);
}

// One that gives up waiting for this worker is answered for whom this worker waits itself, so that it
// can follow the trail.
void FrameLink::hear(FramePeer& other) {
  if (!other.said() || other.failure) return;
  const Failure said = *other.said();
  end_peer(other, said);
  const int whom = waits_for_.load(std::memory_order_relaxed);
  const bool blamed = said.kind == ErrorKind::kTimeout && said.ranks == std::vector<int>{rank_};
  if (blamed && whom != kNoRank && whom != other.rank())
    tell_locked(waiting_failure(rank_, whom, over_network()));
}

void FrameLink::end_peer(FramePeer& other, const Failure& failure) {
  if (other.failure) return;
  other.failure = failure;
  other.fail_posts(failure);
  spread_news();
}

std::optional<Failure> FrameLink::failure() const {
  if (in_child()) return std::nullopt;
  const base::Lock lock(mutex_);
  return failure_;
}

std::optional<Failure> FrameLink::end_of(int whom) const {
  if (!is_peer(whom)) return std::nullopt;
  const base::Lock lock(mutex_);
  return peer(whom)->failure;
}

std::optional<Failure> FrameLink::heard_from(int whom, Deadline deadline) noexcept {
  if (!is_peer(whom)) return std::nullopt;  // a peer may have named anybody
  base::Lock lock(mutex_);
  const FramePeer& other = *peer(whom);
  while (!other.said() && !other.failure && !deadline.expired())
    lock.wait_until(*changed_, deadline.when());
  return other.said();
}

void FrameLink::fail_locked(const Failure& failure) noexcept {
  if (failure_) return;
  failure_ = failure;
  for (int other = 0; other < size_; ++other)
    if (FramePeer* const each = peer(other)) each->fail_posts(failure);
  tell_locked(failure);
  spread_news();
}

void FrameLink::tell_locked(const Failure& failure) noexcept {
  if (std::exchange(state_.told, true)) return;
  const std::string notice = encode_notice(failure);
  for (int other = 0; other < size_; ++other) {
    FramePeer* const each = peer(other);
    if (each == nullptr) continue;
    each->tell(notice);
    push(other);
  }
  spread_news();
}

void FrameLink::tell(const Failure& failure) noexcept {
  if (in_child()) return;
  const base::Lock lock(mutex_);
  tell_locked(failure);
  await_told(Deadline::after(kNoticePatience));
}

bool FrameLink::all_told() const {
  for (int other = 0; other < size_; ++other) {
    const FramePeer* const each = peer(other);
    if (each != nullptr && !each->told()) return false;
  }
  return true;
}

Failure FrameLink::left_world() const {
  return {ErrorKind::kPeerLost, {rank_}, fmt::format("rank {} has left the world", rank_)};
}

}  // namespace lockstep::comm
