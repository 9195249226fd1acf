// Everything that a worker has with one other over TCP: the connection, messages in flight, and
// word of its end.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/fd.h"
#include "comm/core/frame_peer.h"
#include "comm/tcp/tcp_link.h"
#include "comm/tcp/tcp_stream.h"

namespace lockstep::comm {

// Threads:   one at a time; the link guards it.
// Blocking:  never.
// Failure:   read() throws Mismatch if messages contradict each other.
// Ownership: owns the socket. Borrows the memory of posts until they are done or retired.
class TcpPeer : public FramePeer, private FrameSink {
 public:
  using Clock = Deadline::Clock;

  TcpPeer(int rank, TcpWorld::Peer formed);

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

  void retire(Post& post) override;
  void fail_posts(const Failure& why) override;
  bool told() const override { return news_.receipt_came || life_.closed; }

  // If nothing was sent since `before`, the next write() sends a sign of life.
  void beat(Clock::time_point before) { life_.beat_due = life_.wrote < before; }
  // Whether it has spoken, and nothing was heard since `before`.
  bool silent_since(Clock::time_point before) const { return life_.heard && *life_.heard < before; }
  void forgive(Clock::time_point now) {
    if (life_.heard) life_.heard = now;
  }

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

  std::string address_;
  bool elsewhere_;
  base::Fd socket_;
  FrameReader in_;
  FrameWriter out_;

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
  struct Life {
    bool closed = false;
    bool beat_due = false;
    // Only if it is elsewhere.
    std::optional<Clock::time_point> heard;  // nothing until its world has formed, too
    Clock::time_point wrote = Clock::now();
  };
  Life life_;
};

}  // namespace lockstep::comm
