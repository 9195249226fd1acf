#include "comm/shm/ring.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>

namespace lockstep::comm {
namespace {

constexpr std::uint64_t kHeader = sizeof(Frame);

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace

RingWriter::RingWriter(const Segment& segment, int writer)
    : positions_(&segment.positions(writer)),
      ring_(segment.ring(writer)),
      size_(segment.ring_bytes()) {}

std::optional<std::size_t> RingWriter::room(std::size_t least) {
  const auto free = [&]() -> std::optional<std::size_t> {
    const std::uint64_t used = positions_->written.load(std::memory_order_relaxed) -
                               positions_->read.load(std::memory_order_seq_cst);
    if (used > size_ || size_ - used < kHeader + padded(least)) return std::nullopt;
    return (size_ - used - kHeader) / 8 * 8;
  };
  if (auto room = free()) return room;
  // `starved` is stored before the second look. So either the reader sees `starved` after it has
  // made room, or this look sees the room.
  positions_->starved.store(1, std::memory_order_seq_cst);
  return free();
}

void RingWriter::put(std::uint64_t at, const void* bytes, std::size_t count) {
  const std::uint64_t begin = at % size_;
  const std::size_t first = std::min<std::uint64_t>(count, size_ - begin);
  std::memcpy(ring_ + begin, bytes, first);
  std::memcpy(ring_, static_cast<const std::byte*>(bytes) + first, count - first);
}

void RingWriter::write(const Frame& frame, const void* bytes) {
  const std::uint64_t at = positions_->written.load(std::memory_order_relaxed);
  put(at, &frame, kHeader);
  if (frame.bytes > 0) put(at + kHeader, bytes, frame.bytes);
  positions_->written.store(at + kHeader + padded(frame.bytes), std::memory_order_seq_cst);
}

RingReader::RingReader(const Segment& segment, int writer)
    : positions_(&segment.positions(writer)),
      ring_(segment.ring(writer)),
      size_(segment.ring_bytes()),
      writer_(writer) {}

void RingReader::get(std::uint64_t at, void* to, std::size_t count) const {
  const std::uint64_t begin = at % size_;
  const std::size_t first = std::min<std::uint64_t>(count, size_ - begin);
  std::memcpy(to, ring_ + begin, first);
  std::memcpy(static_cast<std::byte*>(to) + first, ring_, count - first);
}

std::optional<Frame> RingReader::peek() {
  const std::uint64_t at = positions_->read.load(std::memory_order_relaxed);
  const std::uint64_t unread = positions_->written.load(std::memory_order_acquire) - at;
  if (unread == 0) return std::nullopt;
  Frame frame;
  const bool header = unread >= kHeader && unread <= size_;
  if (header) get(at, &frame, kHeader);
  const auto kind = static_cast<std::uint32_t>(frame.kind);
  if (!header || kind < 1 || kind > 4 || kHeader + padded(frame.bytes) > unread ||
      frame.bytes > frame.total) {
    throw Mismatch(
        fmt::format(
            "rank {} wrote something into shared memory that is no message: it is broken, or of "
            "another build",
            writer_),
        {writer_});
  }
  return frame;
}

void RingReader::take(const Frame& frame, void* to) {
  const std::uint64_t at = positions_->read.load(std::memory_order_relaxed);
  if (to != nullptr && frame.bytes > 0) get(at + kHeader, to, frame.bytes);
  positions_->read.store(at + kHeader + padded(frame.bytes), std::memory_order_seq_cst);
}

bool RingReader::writer_starves() {
  return positions_->starved.load(std::memory_order_seq_cst) != 0 &&
         positions_->starved.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace lockstep::comm
