// Where the members of a group meet in memory that all of them can read.
//
//   card    what a worker says: its header, and up to kCardBytes that belong to it
//   round   everybody pins one card; who has seen the others' knows that all have come so far
//
// A card can be read until its reader pins the next one: its owner writes on it again only two rounds later, and by
// then has seen everybody's card of the round between.
#pragma once

#include <lockstep/deadline.h>

#include <cstddef>

#include "comm/core/header.h"

namespace lockstep::comm {

inline constexpr std::size_t kCardBytes = 4096;

struct BoardCard {
  HeaderBytes header;
  alignas(64) std::byte bytes[kCardBytes];
};

// Threads:   one at a time.
// Blocking:  await, until its deadline.
// Failure:   await throws what ended the link, or the member that it waits for.
// Ownership: the board is left when it is destroyed.
class Board {
 public:
  virtual ~Board() = default;

  // This worker's card of the next round.
  virtual BoardCard& blank() = 0;
  virtual void pin() = 0;

  // Waits for a member's card of the round that was pinned last here; false at the deadline.
  virtual bool await(int member, Deadline deadline) = 0;
  // The same without waiting.
  virtual bool has_come(int member) = 0;

  // A member's card that await has seen. Its writer may be broken: copy, then check.
  virtual const BoardCard& card(int member) const = 0;
};

}  // namespace lockstep::comm
