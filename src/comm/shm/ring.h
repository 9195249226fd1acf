// A ring of frames from one worker to another. A frame is a header of fixed size and its bytes, padded
// to 8. The kinds of frames are those of core/posts.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/shm/segment.h"

namespace lockstep::comm {

struct Frame {
  enum class Kind : std::uint32_t { kMessage = 1, kAsk = 2, kGrant = 3, kData = 4 };
  Kind kind = Kind::kMessage;
  std::uint32_t bytes = 0;  // bytes that follow in this frame
  std::uint64_t slot = 0;
  std::uint64_t number = 0;  // of the message; its sender counts
  std::uint64_t total = 0;   // bytes of the whole message
};

// The end of a ring that writes.
//
// Threads:   one at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: borrows the segment of the reader.
class RingWriter {
 public:
  RingWriter(const Segment& segment, int writer);

  // How many bytes a frame can carry now; nothing if fewer than `least`. In that case the reader
  // rings when it has made room.
  std::optional<std::size_t> room(std::size_t least);

  // Writes a frame that has room, as room() has said.
  void write(const Frame& frame, const void* bytes);

 private:
  void put(std::uint64_t at, const void* bytes, std::size_t count);

  RingPositions* positions_;
  std::byte* ring_;
  std::uint64_t size_;
};

// The end of a ring that reads.
//
// Threads:   one at a time.
// Blocking:  never.
// Failure:   Mismatch if the bytes in the ring are no frame: the peer is broken.
// Ownership: borrows this worker's segment.
class RingReader {
 public:
  RingReader(const Segment& segment, int writer);

  std::optional<Frame> peek();
  void take(const Frame& frame,
            void* to);  // copies the frame's bytes, unless `to` is null, and moves on
  // Whether the writer waits for room. Ask after take(), and ring the writer's bell if it does.
  bool writer_starves();

 private:
  void get(std::uint64_t at, void* to, std::size_t count) const;

  RingPositions* positions_;
  const std::byte* ring_;
  std::uint64_t size_;
  int writer_;
};

}  // namespace lockstep::comm
