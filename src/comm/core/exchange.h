// One collective under way, seen from one worker: who takes part, what everybody should be doing,
// until when.
//
// In every operation the sender of payload greets its receiver with the operation's header, and the
// receiver checks it against its own before it waits for any payload. A difference is a Mismatch
// that names both.
//
// Payload need not wait for the greeting: it travels in slots that are derived from the whole
// header, so payload of another operation, of another size, never meets the memory that was posted
// for this one.
//
// Where an engine has a board, everybody's header is on it and nobody greets: the first round of an operation compares
// them all.
#pragma once

#include <lockstep/deadline.h>

#include <cstddef>
#include <list>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "comm/core/header.h"
#include "comm/core/link.h"

namespace lockstep::comm {

// Memory that operations of one channel use one after the other; it grows to the largest need and
// stays, because fresh pages cost more than the bytes that go through them.
class Scratch {
 public:
  std::byte* take(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset(new (std::align_val_t(64)) std::byte[bytes]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(64)); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

// What the operations of a channel share.
struct Setting {
  Link& link;
  std::span<const int> members;  // the link's ranks of the participants, by the ranks used here
  Slot greetings = 0;            // payload slots are derived from it
  Scratch& scratch;
  Board* board = nullptr;  // where an engine has one
};

// Payload has two orders of its own: in some algorithms results overtake operands.
enum class Stage : std::uint8_t { kOperands = 0, kResults = 1 };

// Where the payload of an operation travels. The lowest bits and the top bit stay free for engines.
Slot payload_slot(Slot greetings, const Header& header, Stage stage);

// Threads:   one.
// Blocking:  check and wait, until the deadline given at construction.
// Failure:   PeerLost, Timeout or Mismatch, saying in which operation and with whom.
// Ownership: borrows the link and all memory passed, until it is destroyed.
class Exchange {
 public:
  Exchange(const Setting& setting, const Header& header, Deadline deadline);
  ~Exchange() { link().waits_for(kNoRank); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(setting_.members.size()); }
  // A number that no other operation of the link has at this time.
  std::uint32_t tag() const;
  // Every rank but this one, beginning with the next: so that not all turn to rank 0 first.
  const std::vector<int>& peers() const { return peers_; }
  Deadline deadline() const { return deadline_; }
  void limit(Deadline deadline) { deadline_ = earlier(deadline_, deadline); }
  Link& link() const { return setting_.link; }
  std::string doing() const;  // the header in words
  std::byte* scratch(std::size_t bytes) const { return setting_.scratch.take(bytes); }

  // Says to a peer what is being done here.
  void greet(int peer);
  // Expects a peer's greeting. It is checked before the first wait for this peer, or at the end.
  void expect(int peer);
  // Both, with several peers.
  void meet(std::span<const int> peers);
  // Waits for a peer's greeting, if it is expected and was not checked yet, and compares.
  void check(int peer);
  // Checks what is unchecked and waits until every greeting sent has arrived. The last call of an
  // operation.
  void finish();

  // On a board. The first round of an operation may begin before the operation runs: begin() pins
  // a card with these data on it, if there was none before; await_all() waits for everybody's;
  // all_have_come() says that it would not wait. round() is a whole round, with what is on card().
  // card_of() is what a peer has put on its card of the last round.
  bool has_board() const { return setting_.board != nullptr; }
  std::byte* card() const { return setting_.board->blank().bytes; }
  void begin(std::span<const Buffer> data);
  void await_all();
  bool all_have_come() const;
  bool all_come_at_once() const;  // waits no longer than a call takes
  void round();
  const std::byte* card_of(int peer) const { return setting_.board->card(peer).bytes; }

  // Where a buffer of this worker lies for all the others, if they share it; and where a peer's does
  // for this one, which is a Mismatch if it is not there.
  ArenaAddress locate(const Buffer& data) const;
  std::shared_ptr<std::byte> resolve(int peer, ArenaAddress address, const Buffer& like);

  // A message of zero bytes is none: nothing is sent, and waiting for it returns at once.
  class Ticket {
   public:
    Ticket() = default;

   private:
    friend class Exchange;
    Ticket(std::unique_ptr<Transfer> transfer, int peer)
        : transfer_(std::move(transfer)), peer_(peer) {}
    std::unique_ptr<Transfer> transfer_;
    int peer_ = -1;
  };
  Ticket send(int peer, const void* data, std::size_t bytes, Stage stage = Stage::kOperands);
  Ticket recv(int peer, void* data, std::size_t bytes, Stage stage = Stage::kOperands);
  void wait(Ticket& ticket);
  void wait_all(std::span<Ticket> tickets);

  // The engine's own all-reduce, once everybody has been met.
  void native_all_reduce(const Buffer& data, ReduceOp op);

 private:
  struct Greeting {
    int peer = -1;
    HeaderBytes bytes{};
    std::unique_ptr<Transfer> transfer;
  };
  // Every failure leaves through these two: the link is ended, and the peers are told, while the
  // transfers of the operation are still there to be told about.
  template <typename Call>
  auto guarded(int peer, Call&& call);
  template <typename Failed>
  [[noreturn]] void end(const Failed& error);
  [[noreturn]] void late(int peer);
  void pin();
  void compare(int peer, const HeaderBytes& theirs);
  Failure first_cause(Failure own) const;

  int world_rank(int peer) const { return setting_.members[peer]; }

  Setting setting_;
  Header header_;
  Deadline deadline_;
  Deadline::Clock::time_point begun_;
  int rank_ = 0;
  std::vector<int> peers_;
  HeaderBytes own_{};
  Slot payload_ = 0;
  bool pinned_ = false;           // on a board: the first round has begun
  bool met_ = false;              // … and ended
  std::list<Greeting> expected_;  // a list: addresses stay while transfers borrow them
  std::vector<Ticket> greeted_;
};

}  // namespace lockstep::comm
