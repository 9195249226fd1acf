// One operation, seen from one worker: who takes part, what every worker should be doing, and until
// when.
//
// In every operation the sender of payload greets its receiver with the operation's header. The
// receiver compares it with its own header before it waits for any payload. A difference is a
// Mismatch that names both.
//
// Payload need not wait for the greeting. The slots of payload are derived from the header, so
// payload of another operation, with another size, never arrives in memory that was posted for this
// one.
//
// If the engine has a board, all headers are on it and nobody greets: the first round of an
// operation compares them all.
#pragma once

#include <lockstep/deadline.h>

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "comm/core/header.h"
#include "comm/core/link.h"

namespace lockstep::comm {

// Memory that the operations of one channel use one after the other. It grows to the largest size
// needed and is kept, because new pages cost more than the bytes that go through them.
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
  std::span<const int> members;  // the members' ranks in the link, by their ranks in the group
  Slot greetings = 0;            // payload slots are derived from it
  Scratch& scratch;
  Board* board = nullptr;  // null if the engine has none
  // Only for two levels: the members on this worker's host, and their board.
  std::span<const int> neighbours{};
  Board* host_board = nullptr;
};

// Operands and results have separate orders, because in some algorithms results overtake operands.
enum class Stage : std::uint8_t { kOperands = 0, kResults = 1 };

// The slot for the payload of an operation. The lowest bits and the top bit stay free for engines.
Slot payload_slot(Slot greetings, const Header& header, Stage stage);

// What an algorithm works with: greetings, payload, rounds on a board, and one deadline for all of
// them.
//
// Threads:   one at a time.
// Blocking:  check and wait block until the deadline that the constructor or await_until got.
// Failure:   PeerLost, Timeout or Mismatch, with the operation and the peer. The link has ended
//            then.
// Ownership: borrows the link and all memory passed, until it is destroyed.
class Exchange {
 public:
  Exchange(const Setting& setting, const Header& header, Deadline deadline);
  ~Exchange() { link().waits_for(kNoRank); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(setting_.members.size()); }
  // A hash of channel and sequence that tells this operation from others of the link.
  std::uint32_t tag() const;
  // Every rank except this one, beginning with the next one, so that not all begin with rank 0.
  const std::vector<int>& peers() const { return peers_; }
  Deadline deadline() const { return deadline_; }
  void limit(Deadline deadline) { deadline_ = earlier(deadline_, deadline); }
  // For an exchange that was begun before anybody waits for it: the waiting begins now.
  void await_until(Deadline deadline) {
    deadline_ = deadline;
    begun_ = Deadline::Clock::now();
  }
  Link& link() const { return setting_.link; }
  std::string doing() const;  // the header in words
  std::byte* scratch(std::size_t bytes) const { return setting_.scratch.take(bytes); }

  // Sends this worker's header to a peer.
  void greet(int peer);
  // Expects a peer's header. It is checked before the first wait for this peer, or at the end.
  void expect(int peer);
  // Both, with several peers.
  void meet(std::span<const int> peers);
  // Waits for a peer's greeting, if it is expected and was not checked yet, and compares it.
  void check(int peer);
  // Checks what is left to check and waits until every greeting has been sent. With a board it ends
  // the last round. The last call of an operation. If nothing fails, it calls `then`.
  void finish();
  void at_end(std::function<void()> then) { at_end_ = std::move(then); }

  // Only with a board. The first round of an operation may begin before the operation runs: begin()
  // pins a card with these data, show() one that says where these buffers are; both once.
  // await_all() waits for the cards of all peers; all_have_come() says that it would not wait.
  // card_of() is what a peer has put on its card of the last round. part() begins the last round:
  // this worker will not touch memory of others any more.
  bool has_board() const { return setting_.board != nullptr; }
  void begin(std::span<const Buffer> data);
  void show(std::span<const Buffer> buffers);
  void await_all();
  bool all_have_come() const;
  bool all_come_at_once() const;  // looks for a moment, no longer than a hand-over takes
  void part();
  const std::byte* card_of(int peer) const { return setting_.board->card(peer).bytes; }
  // After all have come: the first `count` buffers that every member has shown are in shared memory.
  bool all_share(std::size_t count) const;

  // The same operation among the members on this worker's host. Their ranks count only them.
  Exchange on_host() const;

  // A peer's buffer, mapped here; Mismatch if this worker does not have that memory.
  std::shared_ptr<std::byte> resolve(int peer, ArenaAddress address, const Buffer& like);

  // A handle on one transfer. For zero bytes nothing is sent, and waiting returns at once.
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

 private:
  struct Greeting {
    int peer = -1;
    BoardCard card;  // only the header, unless the peer does something else, with cards
    std::unique_ptr<Transfer> transfer;
  };
  // Every failure leaves through these two. They end the link, which tells the peers, while the
  // transfers of the operation still exist.
  template <typename Call>
  auto guarded(int peer, Call&& call);
  template <typename Failed>
  [[noreturn]] void end(const Failed& error);
  [[noreturn]] void late(int peer);
  Slot payload(Stage stage) const { return payload_slot(setting_.greetings, header_, stage); }
  void pin(std::size_t bytes);
  ArenaAddress locate(const Buffer& data) const;
  void compare(int peer, const HeaderBytes& theirs);
  Failure first_cause(Failure own) const;

  int world_rank(int peer) const { return setting_.members[peer]; }

  Setting setting_;
  Header header_;
  Deadline deadline_;
  Deadline::Clock::time_point begun_;  // to wait
  int rank_ = 0;
  std::vector<int> peers_;
  HeaderBytes own_{};
  bool pinned_ = false;           // on a board: a round has begun
  bool met_ = false;              // … and the last one that has begun has ended
  std::list<Greeting> expected_;  // a list, because transfers borrow the addresses of its items
  std::vector<Ticket> greeted_;
  std::function<void()> at_end_;
};

}  // namespace lockstep::comm
