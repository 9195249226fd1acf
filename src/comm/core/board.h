// Where the members of a group meet: in memory that all of them can read, or by messages
// (core/message_board.h).
//
//   card    what a worker shows: its header, and up to kCardBytes of data
//   round   every member pins one card; a worker that has seen all of them knows that all have come
//           so far
//
// A worker may read a card until it pins its own next one. The owner of the card writes on it again
// two rounds later, and before that it has seen every member's card of the round between. So two
// cards per member are enough, and nobody says that it has finished reading.
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
// Blocking:  await blocks until its deadline.
// Failure:   await throws what ended the link, or the member that it waits for.
// Ownership: the destructor leaves the board.
class Board {
 public:
  virtual ~Board() = default;

  // This worker's card of the next round, to be written; pin() shows it to all, with so many bytes
  // of data.
  virtual BoardCard& blank() = 0;
  virtual void pin(std::size_t bytes) = 0;

  // Optional: about so many bytes will be on everybody's card of the next round. Fetches the lines
  // of the cards from other cores early.
  virtual void prepare(std::size_t bytes) = 0;

  // Waits for a member's card of the last round that was pinned here. False at the deadline.
  virtual bool await(int member, Deadline deadline) = 0;
  // The same without waiting, and for a moment that is shorter than waking a thread takes.
  virtual bool has_come(int member) = 0;
  virtual bool comes_at_once(int member) = 0;

  // A member's card, after await has returned true. The writer may be broken, and may write to the
  // card again: copy first, then check the copy.
  virtual const BoardCard& card(int member) const = 0;
};

}  // namespace lockstep::comm
