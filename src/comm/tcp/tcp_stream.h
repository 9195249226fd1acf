// Frames over one connected socket, which does not block.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "comm/tcp/tags.h"
#include "comm/tcp/tcp_frame.h"

namespace lockstep::comm {

// Writes frames from the caller's memory. A short frame is copied, so that it is one piece.
//
// Threads:   one at a time.
// Blocking:  never: what the socket does not take stays, and flush() goes on.
// Failure:   none thrown. After an error of the socket closed() is true, and nothing is written.
// Ownership: borrows the socket, and the bytes of a frame until it is idle or has kept them.
class FrameWriter {
 public:
  FrameWriter(int socket, std::optional<Tagger> tagger);

  bool idle() const { return left_ == 0; }
  bool closed() const { return closed_; }

  // Begins a frame, and writes what the socket takes. Only when idle.
  void put(const TcpFrame& frame, const std::byte* bytes);
  // Writes on. True if something was written.
  bool flush();
  // The owner takes back the bytes of the frame that is half written: what is left is copied.
  void keep() noexcept;

 private:
  std::size_t whole() const;  // bytes of the frame on the wire
  void make_piece();
  ssize_t send_some();

  int socket_;
  std::optional<Tagger> tagger_;
  std::array<std::byte, kTcpHeaderBytes + kTagBytes> head_{};  // the header, and its tag
  const std::byte* bytes_ = nullptr;
  std::size_t count_ = 0;  // of bytes_
  Tag tag_{};
  std::size_t left_ = 0;          // bytes of the frame, with its tags, that are not written yet
  std::vector<std::byte> piece_;  // a whole short frame, with header and tags
  bool in_piece_ = false;
  std::vector<std::byte> kept_;
  bool closed_ = false;
};

// What a reader does with frames.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A header has come: where its bytes go; null: nowhere. They must not be used before end().
  virtual std::byte* begin(const TcpFrame& frame) = 0;
  // The frame is whole, and genuine.
  virtual void end(const TcpFrame& frame) = 0;
};

// Reads frames into memory that the sink names.
//
// Threads:   one at a time.
// Blocking:  never.
// Failure:   what the sink throws. Bad bytes are a Result.
// Ownership: borrows the socket, and the sink's memory until end() or drop().
class FrameReader {
 public:
  enum class Result : std::uint8_t {
    kNothing,
    kSome,    // something was read, and perhaps there is more
    kClosed,  // by the peer, or lost
    kBroken,  // these bytes are no frames
    kForged,  // a tag is wrong
  };

  FrameReader(int socket, std::optional<Tagger> tagger);

  // Reads for a while, at most until the socket is empty.
  Result read(FrameSink& sink);
  // The owner takes back the memory for the frame that is half read: the rest goes nowhere.
  void drop() { to_ = nullptr; }

 private:
  enum class Part : std::uint8_t { kHeader, kBytes, kTag };

  std::size_t held() const { return end_ - begin_; }
  bool take_tag();
  Result refill();
  Result take_bytes_from_socket();
  Result parse(FrameSink& sink);
  std::optional<Result> parse_part(FrameSink& sink);
  void take_bytes(std::size_t count);

  int socket_;
  std::optional<Tagger> tagger_;
  std::vector<std::byte> buffer_;  // begin_ to end_ have come, and were not looked at
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  Part part_ = Part::kHeader;
  TcpFrame frame_;
  std::byte* to_ = nullptr;
  std::size_t left_ = 0;  // of the frame's bytes
};

}  // namespace lockstep::comm
