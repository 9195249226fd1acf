// What a worker has in flight with one other: messages that are posted, announced, granted or half
// sent. For engines that carry messages as frames:
//
//   kMessage   a whole short message. A receiver that does not expect it yet keeps it
//   kAsk       announces a long message. The receiver keeps only this
//   kGrant     the answer to kAsk, with its number: the receiver has memory for it
//   kData      some bytes of a granted message
//
// So a receiver keeps no long message that it does not expect, and of short ones only those whose
// senders did not wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/core/link.h"

namespace lockstep::comm {

// A longer message asks first, unless the engine says otherwise (Sends::short_bytes).
inline constexpr std::size_t kShortMessageBytes = 16384;
// One in so many messages to a peer asks even if it is short, and so does one when so many bytes have
// not asked. Those that are known to have been received do not count. So a worker that waits for its
// sends is never further ahead.
inline constexpr std::uint64_t kShortInARow = 32;
inline constexpr std::size_t kShortBytesInARow = std::size_t{2} << 20;

enum class PostState { kPosted, kDone, kFailed };

// What a transfer has under way. It is part of the transfer; queues only point to it, until it is
// done, has failed, or was retired.
struct Post {
  int peer = 0;
  Slot slot = 0;
  std::byte* data = nullptr;  // for a send, only read
  std::size_t bytes = 0;      // to send; for a receive, the room
  std::size_t moved = 0;
  std::size_t total = 0;  // for a receive: bytes of the message
  std::uint64_t number = 0;
  bool sends = false;
  bool asks = false;  // a send that wants a grant first
  bool cancelled = false;
  PostState state = PostState::kPosted;
  std::optional<Failure> failure;

  void fail(const Failure& why) {
    failure = why;
    state = PostState::kFailed;
  }
  // Nobody need wait for it any more.
  bool settled() const { return state != PostState::kPosted || cancelled; }
};

Post make_send(int peer, Slot slot, const void* data, std::size_t bytes);
Post make_recv(int peer, Slot slot, void* data, std::size_t bytes);

// A transfer of a link that has posts. The link has wait, cancel and retire for posts.
//
// Threads:   any thread waits and cancels; one destroys it.
// Blocking:  wait, until its deadline.
// Failure:   wait throws what the link says.
// Ownership: owns the post, and keeps the link.
template <typename PostingLink>
class PostTransfer : public Transfer {
 public:
  PostTransfer(std::shared_ptr<PostingLink> link, const Post& post)
      : link_(std::move(link)), post_(post) {}
  ~PostTransfer() override {
    if (!done_.load(std::memory_order_relaxed)) link_->retire(post_);
  }
  PostTransfer(const PostTransfer&) = delete;
  PostTransfer& operator=(const PostTransfer&) = delete;

  bool wait(Deadline deadline) override {
    if (!done_.load(std::memory_order_relaxed) && link_->wait(post_, deadline)) set_done();
    return done_.load(std::memory_order_relaxed);
  }
  void cancel() override { link_->cancel(post_); }

  // Only the link: under its lock.
  Post& post() { return post_; }
  // The link has let go of the post, which is done.
  void set_done() { done_.store(true, std::memory_order_relaxed); }

 private:
  std::shared_ptr<PostingLink> link_;
  Post post_;
  std::atomic<bool> done_{false};
};

// A message that has arrived, or was announced, before there was a receive for it.
struct EarlyMessage {
  std::uint64_t number = 0;
  std::size_t total = 0;
  bool announced = false;  // only its kAsk has come
  std::vector<std::byte> bytes;
};

// The answer to a kAsk.
struct Grant {
  Slot slot = 0;
  std::uint64_t number = 0;
  std::size_t total = 0;
};

// Sends to one other worker, in the order in which a send passes through.
struct Sends {
  std::uint64_t next_number = 1;
  std::size_t short_bytes = kShortMessageBytes;
  std::uint64_t in_a_row = 0;            // without a short one that asked
  std::size_t bytes_in_a_row = 0;        // of these
  std::deque<Post*> to_begin;            // no frame has been written yet, in order
  std::map<std::uint64_t, Post*> asked;  // wait for their grant
  std::deque<Post*> streaming;           // granted

  void add(Post& post);
  // The peer is known to have received so many messages more.
  void received(std::uint64_t messages);
  // A grant has come. One for a send that was withdrawn is nothing.
  void granted(std::uint64_t number);
};

// Receives from one other worker.
struct Receives {
  std::vector<Post*> wanted;                  // receives without a message yet, in order: few
  std::multimap<Slot, EarlyMessage> arrived;  // messages without a receive yet, in order
  std::deque<Grant> grants;                   // written before anything else
  std::map<std::uint64_t, Post*> granted;     // by number

  // The first receive that waits for a message of this slot, which is taken out; or null.
  Post* take_wanted(Slot slot);
  // The first message that has come for this slot, which is taken out. With `whole_only` not one
  // that was only announced.
  std::optional<EarlyMessage> take_arrived(Slot slot, bool whole_only);
};

// Threads, Blocking: none of its own; the link guards it.
struct PeerPosts {
  Sends sends;
  Receives receives;

  // A message has come for a receive: done, or granted. Throws Mismatch if the message is longer
  // than the receive, or was announced twice; the post has failed then.
  void match(Post& post, EarlyMessage arrival);
  // The post is in no queue any more.
  void retire(Post& post);
  // Every post fails, and leaves its queue.
  void fail(const Failure& failure);
};

}  // namespace lockstep::comm
