#include "comm/core/message_board.h"

#include <lockstep/errors.h>

#include <cstddef>

#include "comm/core/posts.h"

namespace lockstep::comm {
namespace {

// Among more workers a barrier takes fewer messages in rounds.
constexpr int kFewWorkers = 4;
// The link is told once in so many rounds what has been received.
constexpr std::uint64_t kRoundsToTell = kShortInARow / 2;

static_assert(offsetof(BoardCard, bytes) == kHeaderBytes, "header and data are one message");

}  // namespace

bool travels_on_cards(const Header& header, int workers) {
  const bool fits =
      header.count <= kCardBytes && header.count * size_of(header.dtype) <= kCardBytes;
  switch (header.kind) {
    case Kind::kAllReduce:
      return fits && header.algorithm == Algorithm::kDirect;
    case Kind::kAllGather:
    case Kind::kAllToAll:
      return fits;
    case Kind::kBarrier:
      return workers <= kFewWorkers;
    default:
      return false;
  }
}

MessageBoard::MessageBoard(Link& link, std::span<const int> members, Slot greetings)
    : link_(link),
      members_(members.begin(), members.end()),
      slot_(greetings),
      theirs_(std::make_unique_for_overwrite<Theirs[]>(members.size())) {}

// First the receives, so that nothing that comes must be kept for later. A member has pinned its
// last card after it had received this worker's card of the round before.
void MessageBoard::pin(std::size_t bytes) {
  ++rounds_;
  const bool told = rounds_ > 2 && rounds_ % kRoundsToTell == 2;  // not of the last two rounds
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == link_.rank()) continue;
    theirs_[i].arrives = link_.recv(members_[i], slot_, &theirs_[i].card, sizeof(BoardCard));
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == link_.rank()) continue;
    if (told) link_.received_by(members_[i], kRoundsToTell);
    theirs_[i].goes = link_.send(members_[i], slot_, &own_, kHeaderBytes + bytes);
  }
}

bool MessageBoard::await(int member, Deadline deadline) {
  Theirs& theirs = theirs_[index(member)];
  for (auto* transfer : {&theirs.arrives, &theirs.goes}) {
    if (*transfer && !(*transfer)->wait(deadline)) return false;
    transfer->reset();
  }
  return true;
}

bool MessageBoard::comes_at_once(int member) {
  if (has_come(member)) return true;
  return comes(member, Deadline::after(*link_.patience_in_call()));
}

// A failure counts as come: await() throws it.
bool MessageBoard::comes(int member, Deadline deadline) {
  const Theirs& theirs = theirs_[index(member)];
  if (!theirs.arrives && !theirs.goes) return true;
  try {
    return await(member, deadline);
  } catch (const Error&) {
    return true;
  }
}

}  // namespace lockstep::comm
