// What each worker shares with the others: one stretch of memory that all of them map.
//
//   face       who it is, how far it has come in forming the world
//   doorbell   rung by others when they have put something into a ring, or made room in one
//   notices    why this worker is about to end, and why it has ended
//   boards     this worker's cards on the boards of its groups; a bell for those who wait at one
//   rings      one for every other worker, who writes to it; this one reads
//
// A peer is of the same user and has proven the secret, and may still be broken: whatever is read from its memory is
// copied first and checked then.
#pragma once

#include <lockstep/arena.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/core/board.h"
#include "comm/core/failure.h"
#include "comm/shm/doorbell.h"

namespace lockstep::comm {

struct Face {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::int32_t rank = -1;
  std::int32_t size = 0;
  std::uint32_t ring_bytes = 0;
  std::int32_t pid = 0;
  std::uint64_t pid_namespace = 0;
};

struct Notice {
  alignas(64) Word there;
  char text[kNoticeBytes];
};

// Positions only grow; what lies between them is unread.
struct RingPositions {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  Word starved;  // the writer waits for room
};

// This worker's part of one board. Only it writes here.
struct BoardEntry {
  alignas(64) std::atomic<std::uint64_t> group;  // whose board it is; 0: nobody's
  Word left;                                     // this worker will not look at it again
  alignas(64) Word round;                        // of the card that was pinned last
  BoardCard cards[2];                            // of even and odd rounds
};
inline constexpr int kBoardEntries = 128;

struct SegmentHead {
  Face face;
  Word phase;  // of forming; see shm_engine.cpp
  Doorbell doorbell;
  Doorbell board_bell;
  Notice told;
  Notice ended;
};

// Threads:   the memory is shared; each member says who may write it.
// Blocking:  never.
// Failure:   none; sizes have been checked when the arena was mapped.
// Ownership: owns the mapping.
class Segment {
 public:
  Segment(Arena arena, int size, std::uint32_t ring_bytes);

  static std::size_t bytes_for(int size, std::uint32_t ring_bytes);

  SegmentHead& head() const { return *reinterpret_cast<SegmentHead*>(arena_.data()); }
  BoardEntry& board_entry(int index) const;
  RingPositions& positions(int writer) const;
  std::byte* ring(int writer) const;
  std::uint32_t ring_bytes() const { return ring_bytes_; }

  void ring_bell() const { head().doorbell.ring(); }
  void ring_board_bell() const { head().board_bell.ring_sleepers(); }

 private:
  Arena arena_;
  int size_;
  std::uint32_t ring_bytes_;
};

// Publishes a notice, once; and reads one that is there.
void publish(Notice& notice, const Failure& failure);
std::optional<Failure> read_notice(const Notice& notice);

}  // namespace lockstep::comm
