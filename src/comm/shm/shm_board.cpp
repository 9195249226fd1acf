#include "comm/shm/shm_board.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>

#include "base/hash.h"

namespace lockstep::comm {
namespace {

// A worker's entry for a group. Null if the worker has not come to that board yet, or has given the
// entry to another group since.
BoardEntry* find_entry(const Segment& segment, std::uint64_t group) {
  for (int index = 0; index < kBoardEntries; ++index) {
    BoardEntry& entry = segment.board_entry(index);
    if (entry.group.load(std::memory_order_seq_cst) == group) return &entry;
  }
  return nullptr;
}

}  // namespace

class Boards::ShmBoard : public Board {
 public:
  ShmBoard(const BoardSetting& setting, BoardEntry& own, std::uint64_t group,
           std::span<const int> members)
      : setting_(setting), own_(own), group_(group), members_(members.begin(), members.end()) {
    for (const int member : members_) entries_.push_back(member == setting_.rank ? &own_ : nullptr);
    round_ = own_.round.load(std::memory_order_relaxed);
  }
  ~ShmBoard() override {
    if (::getpid() == pid_) own_.left.store(1, std::memory_order_seq_cst);
  }

  BoardCard& blank() override { return own_.cards[(round_ + 1) % 2]; }

  void prepare(std::size_t bytes) override {
    expected_ = std::min(bytes, kCardBytes);
    BoardCard& card = blank();
    prefetch_to_write(&card.header);
    for (std::size_t at = 0; at < expected_; at += kLine) prefetch_to_write(card.bytes + at);
    prefetch_to_write(&own_.round);
  }

  // A member counts itself in `sleeping` before it looks at the round the last time. This worker
  // stores the round before it looks at `sleeping`. So one of the two sees the other.
  void pin(std::size_t /*bytes*/) override {
    own_.round.store(++round_, std::memory_order_seq_cst);
    for (const int rank : members_) {
      if (rank != setting_.rank) segment(rank).ring_board_bell();
    }
  }

  bool has_come(int member) override {
    const BoardEntry* entry = entry_of(member);
    if (entry == nullptr) return false;
    const std::uint32_t theirs = entry->round.load(std::memory_order_seq_cst);
    return static_cast<std::int32_t>(theirs - round_) >= 0;
  }

  bool comes_at_once(int member) override {
    if (!spin(member, {setting_.patience.looks / kMoments, {}})) return false;
    const BoardCard& theirs = card(member);
    __builtin_prefetch(&theirs.header);
    for (std::size_t at = 0; at < expected_; at += kLine) __builtin_prefetch(theirs.bytes + at);
    return true;
  }

  bool await(int member, Deadline deadline) override {
    if (spin(member, setting_.patience)) return true;
    Doorbell& bell = segment(setting_.rank).head().board_bell;
    const Sleeper sleeper(bell);
    while (true) {
      const std::uint32_t seen = bell.rung.load(std::memory_order_seq_cst);
      if (has_come(member)) return true;  // before `trouble`, which may wait for a lock
      const auto trouble = setting_.trouble(members_[static_cast<std::size_t>(member)]);
      if (has_come(member)) return true;  // after `trouble`: a card pinned before the end counts
      if (trouble) raise(*trouble);
      if (deadline.expired()) return false;
      futex_wait(bell.rung, seen, next_look(deadline));
      // A member that has come all the same was stopped before it rang: it is the one that is late.
      const bool rung = bell.rung.load(std::memory_order_seq_cst) != seen;
      if (!rung && deadline.expired()) return false;
    }
  }

  const BoardCard& card(int member) const override {
    return entries_[static_cast<std::size_t>(member)]->cards[round_ % 2];
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr int kMoments = 8;       // in the time for which a waiter looks without yielding
  static constexpr int kQuickLooks = 256;  // before the first pause, which is long on some machines

  bool spin(int member, const Patience& patience) {
    for (int i = 0; i < kQuickLooks; ++i) {
      if (has_come(member)) return true;
    }
    return look_again(patience, [&] { return has_come(member); });
  }

  const Segment& segment(int rank) const {
    return *setting_.segments[static_cast<std::size_t>(rank)];
  }
  Deadline next_look(Deadline deadline) const {
    if (setting_.look_every.count() == 0) return deadline;
    return earlier(deadline, Deadline::after(setting_.look_every));
  }

  BoardEntry* entry_of(int member) {
    BoardEntry*& entry = entries_[static_cast<std::size_t>(member)];
    if (entry == nullptr)
      entry = find_entry(segment(members_[static_cast<std::size_t>(member)]), group_);
    return entry;
  }

  int pid_ = ::getpid();  // a child of fork() leaves its parent's boards alone
  const BoardSetting& setting_;
  BoardEntry& own_;
  std::uint64_t group_;
  std::vector<int> members_;
  std::vector<BoardEntry*> entries_;  // by member, as far as they were found
  std::uint32_t round_ = 0;
  std::size_t expected_ = 0;  // bytes on a card of this round
};

Boards::Boards(BoardSetting setting) : setting_(std::move(setting)), owned_(kBoardEntries) {}

BoardEntry& Boards::own(std::size_t index) const {
  return setting_.segments[static_cast<std::size_t>(setting_.rank)]->board_entry(
      static_cast<int>(index));
}

// Nobody will look at this worker's entry for the group any more. A member may have no entry for
// the group, for one of two reasons. It has never come: this worker has left, so it will wait for
// this worker in vain in any case. Or it has given its entry to another group, which it does only
// after all have left.
bool Boards::all_have_left(const Owned& owned) const {
  return std::all_of(owned.members.begin(), owned.members.end(), [&](int rank) {
    const BoardEntry* entry =
        find_entry(*setting_.segments[static_cast<std::size_t>(rank)], owned.group);
    return entry == nullptr || entry->left.load(std::memory_order_seq_cst) != 0;
  });
}

std::unique_ptr<Board> Boards::make(std::uint64_t group, std::span<const int> members) {
  const std::uint64_t key = base::mix64(group) | 1;  // never 0
  const base::Lock lock(mutex_);
  const auto free = std::find_if(owned_.begin(), owned_.end(), [&](const Owned& owned) {
    return !owned.used || all_have_left(owned);
  });
  if (free == owned_.end()) {
    throw Unavailable(
        fmt::format("more than {} channels of one world are in use at a time", kBoardEntries));
  }
  *free = {key, {members.begin(), members.end()}, true};
  BoardEntry& entry = own(static_cast<std::size_t>(free - owned_.begin()));
  entry.left.store(0);
  entry.round.store(0);
  entry.group.store(key, std::memory_order_seq_cst);
  return std::make_unique<ShmBoard>(setting_, entry, key, members);
}

}  // namespace lockstep::comm
