// A ring of frames from one worker to another.
//
//   frame    a header of fixed size and its bytes, padded to 8
//   kinds    kMessage   a whole short message
//            kAsk       a long message wants to be taken
//            kGrant     the receiver has memory for it: the answer to kAsk, by its number
//            kData      a stretch of a granted message
//
// Short messages that nobody expects yet are kept by the receiver; of long ones it keeps only the question, so memory
// stays bounded whatever a peer sends ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/shm/segment.h"

namespace lockstep::comm {

struct Frame {
  enum class Kind : std::uint32_t { kMessage = 1, kAsk = 2, kGrant = 3, kData = 4 };
  Kind kind = Kind::kMessage;
  std::uint32_t bytes = 0;  // that follow in this frame
  std::uint64_t slot = 0;
  std::uint64_t number = 0;  // of the message, by its sender
  std::uint64_t total = 0;   // bytes of the whole message
};

// Threads:   one at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: borrows the segment of the reader.
class RingWriter {
 public:
  RingWriter(const Segment& segment, int writer);

  // How many bytes a frame could carry now; nothing if fewer than `least`. The reader will then ring when it has
  // made room.
  std::optional<std::size_t> room(std::size_t least);

  // What room() has allowed.
  void write(const Frame& frame, const void* bytes);

 private:
  void put(std::uint64_t at, const void* bytes, std::size_t count);

  RingPositions* positions_;
  std::byte* ring_;
  std::uint64_t size_;
};

// Threads:   one at a time.
// Blocking:  never.
// Failure:   Mismatch when what is there is no frame: the peer is broken.
// Ownership: borrows its own segment.
class RingReader {
 public:
  RingReader(const Segment& segment, int writer);

  std::optional<Frame> peek();
  void take(const Frame& frame,
            void* to);  // copies the frame's bytes, if `to` is given, and moves on
  // Whether the writer waits for room; asked after taking.
  bool writer_starves();

 private:
  void get(std::uint64_t at, void* to, std::size_t count) const;

  RingPositions* positions_;
  const std::byte* ring_;
  std::uint64_t size_;
  int writer_;
};

}  // namespace lockstep::comm
