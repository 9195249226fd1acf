// A board for workers that share no memory: cards travel as messages, one from everybody to
// everybody. A short collective that does this anyway has one message for header and data then, and
// can begin in its call: when the messages are posted, no peer waits for this worker any more.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "comm/core/board.h"
#include "comm/core/link.h"

namespace lockstep::comm {

// Whether an operation runs on cards that are messages, if the link has them. All workers must
// answer the same, so only the header and the number of workers count.
bool travels_on_cards(const Header& header, int workers);

// Threads:   one at a time.
// Blocking:  await blocks until its deadline; comes_at_once for the link's patience.
// Failure:   await throws what ended the link, or the member that it waits for; pin the same.
// Ownership: borrows the link. Cards use the slot of greetings, so that a worker that greets
//            instead, because it does something else, is found out.
class MessageBoard : public Board {
 public:
  MessageBoard(Link& link, std::span<const int> members, Slot greetings);

  BoardCard& blank() override { return own_; }
  void pin(std::size_t bytes) override;
  void prepare(std::size_t /*bytes*/) override {}
  // Also waits until this worker's card has gone to that member.
  bool await(int member, Deadline deadline) override;
  bool has_come(int member) override { return comes(member, past_); }
  bool comes_at_once(int member) override;
  const BoardCard& card(int member) const override { return theirs_[index(member)].card; }

 private:
  // What is under way with one member; null: it has ended.
  struct Theirs {
    BoardCard card;
    std::unique_ptr<Transfer> arrives;
    std::unique_ptr<Transfer> goes;
  };
  static std::size_t index(int member) { return static_cast<std::size_t>(member); }
  bool comes(int member, Deadline deadline);

  Link& link_;
  std::vector<int> members_;
  Slot slot_;
  const Deadline past_ = Deadline::after(std::chrono::seconds(0));
  std::uint64_t rounds_ = 0;
  BoardCard own_;
  std::unique_ptr<Theirs[]> theirs_;  // by member; this worker's is unused
};

}  // namespace lockstep::comm
