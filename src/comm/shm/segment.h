// What each worker shares with the others: one arena that all of them map.
//
//   face       which worker it is, and how far it has come in forming the world
//   doorbell   others ring it when they have put something into a ring, or made room in one
//   notices    why this worker is about to end, and why it has ended
//   boards     this worker's cards on the boards of its groups, and a bell for its threads that
//              wait at a board
//   rings      one for every other worker; the other worker writes, this one reads
//   staging    where this worker puts operands from memory that is not shared (core/staging.h)
//
// A peer belongs to the same user and has proven the secret, but it may be broken. So everything
// that is read from its memory is copied first, and then checked: memory that is checked in place
// could change after the check.
#pragma once

#include <lockstep/arena.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/core/board.h"
#include "comm/core/failure.h"
#include "comm/core/staging.h"
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

// Positions only grow. The bytes between `read` and `written` are unread. Each position has a cache
// line of its own, because two workers write them.
struct RingPositions {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  Word starved;  // the writer waits for room
};

// This worker's part of one board. Only this worker writes here.
struct BoardEntry {
  alignas(64) std::atomic<std::uint64_t> group;  // which board it belongs to; 0: none
  Word left;                                     // this worker will not look at the board again
  alignas(64) Word round;                        // of the card that was pinned last
  BoardCard cards[2];                            // for even and odd rounds
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

// The segment of one worker, mapped here: where each part of it is.
//
// Threads:   the memory is shared; each member says who may write it.
// Blocking:  never.
// Failure:   none; the size was checked when the arena was mapped.
// Ownership: owns the mapping.
class Segment {
 public:
  Segment(Arena arena, int size, std::uint32_t ring_bytes);

  static std::size_t bytes_for(int size, std::uint32_t ring_bytes);

  SegmentHead& head() const { return *reinterpret_cast<SegmentHead*>(arena_.data()); }
  BoardEntry& board_entry(int index) const;
  RingPositions& positions(int writer) const;
  std::byte* ring(int writer) const;
  std::byte* staging() const;
  std::uint32_t ring_bytes() const { return ring_bytes_; }

  void ring_bell() const { head().doorbell.ring(); }
  void ring_board_bell() const { head().board_bell.ring_sleepers(); }

 private:
  Arena arena_;
  int size_;
  std::uint32_t ring_bytes_;
};

// publish writes a notice; only the first one counts. read_notice returns nothing before that.
void publish(Notice& notice, const Failure& failure);
std::optional<Failure> read_notice(const Notice& notice);

}  // namespace lockstep::comm
