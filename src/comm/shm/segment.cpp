#include "comm/shm/segment.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace lockstep::comm {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

std::size_t positions_begin() {
  return aligned(sizeof(SegmentHead)) + aligned(kBoardEntries * sizeof(BoardEntry));
}

std::size_t rings_begin(int size) {
  return positions_begin() + aligned(static_cast<std::size_t>(size) * sizeof(RingPositions));
}

std::size_t staging_begin(int size, std::uint32_t ring_bytes) {
  return rings_begin(size) + aligned(static_cast<std::size_t>(size) * ring_bytes);
}

}  // namespace

Segment::Segment(Arena arena, int size, std::uint32_t ring_bytes)
    : arena_(std::move(arena)), size_(size), ring_bytes_(ring_bytes) {}

std::size_t Segment::bytes_for(int size, std::uint32_t ring_bytes) {
  return staging_begin(size, ring_bytes) + kStagingBytes;
}

BoardEntry& Segment::board_entry(int index) const {
  auto* first = reinterpret_cast<BoardEntry*>(arena_.data() + aligned(sizeof(SegmentHead)));
  return first[index];
}

RingPositions& Segment::positions(int writer) const {
  auto* first = reinterpret_cast<RingPositions*>(arena_.data() + positions_begin());
  return first[writer];
}

std::byte* Segment::ring(int writer) const {
  return arena_.data() + rings_begin(size_) + static_cast<std::size_t>(writer) * ring_bytes_;
}

std::byte* Segment::staging() const {
  return arena_.data() + staging_begin(size_, ring_bytes_);
}

void publish(Notice& notice, const Failure& failure) {
  if (notice.there.load(std::memory_order_acquire) != 0) return;
  const std::string text = encode_notice(failure);
  std::memcpy(notice.text, text.data(), std::min(text.size(), sizeof notice.text));
  notice.there.store(1, std::memory_order_release);
  futex_wake_all(notice.there);
}

std::optional<Failure> read_notice(const Notice& notice) {
  if (notice.there.load(std::memory_order_acquire) == 0) return std::nullopt;
  const std::string copy(notice.text, sizeof notice.text);
  return decode_notice(copy);
}

}  // namespace lockstep::comm
