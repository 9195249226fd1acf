// A board in the segments of its members: each member pins its cards in its own segment.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "comm/core/board.h"
#include "comm/core/failure.h"
#include "comm/shm/doorbell.h"
#include "comm/shm/segment.h"

namespace lockstep::comm {

// What boards need from their link.
struct BoardSetting {
  std::vector<const Segment*> segments;  // by rank of the link; null for workers of other hosts
  int rank = 0;
  Patience patience;
  // Why a rank will not come any more: it has ended, or this link has ended. Nothing if it may
  // come.
  std::function<std::optional<Failure>(int rank)> trouble;
  // A sleeper looks for trouble so often; 0: the link rings the bell when there is some.
  std::chrono::milliseconds look_every{0};
};

// The board entries of this worker's segment. An entry is used again only when all members have
// left its board, because a slow member may still read the last card.
//
// Threads:   any.
// Blocking:  never.
// Failure:   make() throws Unavailable if all entries are in use.
// Ownership: borrows what the setting names. Must outlive its boards.
class Boards {
 public:
  explicit Boards(BoardSetting setting);

  std::unique_ptr<Board> make(std::uint64_t group, std::span<const int> members);

 private:
  class ShmBoard;
  struct Owned {
    std::uint64_t group = 0;
    std::vector<int> members;
    bool used = false;
  };
  BoardEntry& own(std::size_t index) const;
  bool all_have_left(const Owned& owned) const;

  BoardSetting setting_;
  base::Mutex mutex_;
  std::vector<Owned> owned_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::comm
