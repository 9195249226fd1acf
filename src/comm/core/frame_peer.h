// What a worker has with one other where messages travel as frames (posts.h): messages in flight, and
// word of the end of either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/core/posts.h"

namespace lockstep::comm {

// An engine derives its own from it, which reads and writes the frames.
//
// Threads:   one at a time; the link guards it.
// Blocking:  never.
// Failure:   take_ask() throws Mismatch if messages contradict each other.
// Ownership: borrows the memory of posts until they are done or retired.
class FramePeer {
 public:
  explicit FramePeer(int rank) : rank_(rank) {}
  virtual ~FramePeer() = default;
  FramePeer(const FramePeer&) = delete;
  FramePeer& operator=(const FramePeer&) = delete;

  int rank() const { return rank_; }

  PeerPosts& posts() { return posts_; }
  const PeerPosts& posts() const { return posts_; }
  // The post's memory is not used any more.
  virtual void retire(Post& post) { posts_.retire(post); }
  virtual void fail_posts(const Failure& why) { posts_.fail(why); }

  // tell: this notice is sent before any message. told: the peer has received it, or there is no use in
  // waiting until it has.
  void tell(const std::string& notice) { news_.notice = notice; }
  virtual bool told() const = 0;
  // The notice of the peer, if one has come.
  const std::optional<Failure>& said() const { return news_.said; }

  // Why nothing more comes from it.
  std::optional<Failure> failure;

 protected:
  // Frames that have come.
  void take_ask(Slot slot, std::uint64_t number, std::size_t total);
  void take_notice(std::string_view notice);

  struct News {
    std::string notice;  // to be sent; empty: none
    bool receipt_due = false;
    bool receipt_came = false;
    std::optional<Failure> said;
  };
  News news_;

 private:
  int rank_;
  PeerPosts posts_;
};

}  // namespace lockstep::comm
