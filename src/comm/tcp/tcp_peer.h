// Everything that a worker has with one other over TCP: the connection, messages in flight, and
// word of its end.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/fd.h"
#include "comm/core/posts.h"
#include "comm/tcp/tcp_link.h"
#include "comm/tcp/tcp_stream.h"

namespace lockstep::comm {

// Threads:   one at a time; the link guards it.
// Blocking:  never.
// Failure:   read() throws Mismatch if messages contradict each other.
// Ownership: owns the socket. Borrows the memory of posts until they are done or retired.
class TcpPeer : private FrameSink {
 public:
  using Clock = Deadline::Clock;

  TcpPeer(int rank, TcpWorld::Peer formed);

  int rank() const { return rank_; }
  int socket() const { return socket_.get(); }
  const std::string& address() const { return address_; }
  bool elsewhere() const { return elsewhere_; }

  // Reads for a while.
  FrameReader::Result read();
  // Writes for a while, at most until the socket takes no more. True if something was written.
  bool write();
  // Whether write() would have more, if the socket took it.
  bool wants_to_write() const;
  void shut_down();

  PeerPosts& posts() { return posts_; }
  // The post's memory is not used any more.
  void retire(Post& post);
  void fail_posts(const Failure& failure);

  // tell: the next write() begins with this notice. told: the peer has received it, or its
  // connection has ended.
  void tell(const std::string& notice) { news_.notice = notice; }
  bool told() const { return news_.receipt_came || life_.closed; }
  const std::optional<Failure>& said() const { return news_.said; }
  // If nothing was sent since `before`, the next write() sends a sign of life.
  void beat(Clock::time_point before) { news_.beat_due = life_.wrote < before; }
  // Whether it has spoken, and nothing was heard since `before`.
  bool silent_since(Clock::time_point before) const { return life_.heard && *life_.heard < before; }
  void forgive(Clock::time_point now) {
    if (life_.heard) life_.heard = now;
  }

  // Why nothing more comes from it.
  std::optional<Failure> failure;

 private:
  std::byte* begin(const TcpFrame& frame) override;
  void end(const TcpFrame& frame) override;
  std::byte* begin_message(const TcpFrame& frame);
  std::byte* begin_data(const TcpFrame& frame);
  void end_message(const TcpFrame& frame);
  void end_data(const TcpFrame& frame);
  bool put_next();
  void begin_send();
  void put_data(Post& post);
  void finish_frame();

  int rank_;
  std::string address_;
  bool elsewhere_;
  base::Fd socket_;
  FrameReader in_;
  FrameWriter out_;
  PeerPosts posts_;

  // The frame that is being read: whose memory it goes to, or what nobody waited for when it began.
  struct Reading {
    Post* post = nullptr;
    EarlyMessage arrival;
    bool dropped = false;
    std::string notice;
  };
  Reading reading_;
  // The send whose bytes the writer has now, and how many.
  struct Writing {
    Post* post = nullptr;
    std::size_t bytes = 0;
  };
  Writing writing_;
  // What is to be sent beside messages, and what was heard.
  struct News {
    std::string notice;  // empty: none
    bool receipt_due = false;
    bool receipt_came = false;
    bool beat_due = false;
    std::optional<Failure> said;
  };
  News news_;
  struct Life {
    bool closed = false;
    // Only if it is elsewhere.
    std::optional<Clock::time_point> heard;  // nothing until its world has formed, too
    Clock::time_point wrote = Clock::now();
  };
  Life life_;
};

}  // namespace lockstep::comm
