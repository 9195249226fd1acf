// Some workers of a link, with ranks of their own: what the collectives and the messages of a
// channel share.
#pragma once

#include <lockstep/comm.h>

#include <memory>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "comm/core/exchange.h"
#include "comm/core/link.h"

namespace lockstep::comm {

// The arenas of a world that its workers leave if all of them die, in the order in which they were made. Their
// owners enter them (Inside::enter).
//
// Threads:   any.
// Blocking:  never.
// Failure:   none.
// Ownership: does not own the arenas.
class ArenaBook {
 public:
  struct Entry {
    std::uint64_t group = 0;  // the id of the group that shares it
    std::uint8_t kind = 0;    // what it is for, as its owner numbers that
    std::shared_ptr<SharedArena> arena;
  };
  void add(const Entry& entry);
  std::vector<Entry> in_use() const;

 private:
  struct Known {
    std::uint64_t group = 0;
    std::uint8_t kind = 0;
    std::weak_ptr<SharedArena> arena;
  };
  mutable base::Mutex mutex_;
  std::vector<Known> known_ LOCKSTEP_GUARDED_BY(mutex_);
};

struct Group {
  std::shared_ptr<Link> link;
  std::vector<int> members;  // the link's ranks, by the ranks of the group
  std::uint64_t id = 0;      // the same on every member, different for every channel and split
  int rank = 0;
  std::chrono::milliseconds timeout{0};

  // The number of each member's host, counted among the hosts of the group. Empty if two levels gain
  // nothing: there is one host, or each member has a host of its own, or nobody knows.
  std::vector<int> hosts;
  // The link's ranks of the members on this worker's host.
  std::vector<int> neighbours;
  // Asks the link for these two.
  void find_hosts();

  // Every other member has ended, and this worker speaks for all of them (connect_late).
  bool late = false;
  // Of the world; its channels and splits have the same.
  std::shared_ptr<ArenaBook> book = std::make_shared<ArenaBook>();

  int size() const { return static_cast<int>(members.size()); }
  bool meets_nobody() const { return late || size() == 1; }

  // Collectives and messages do not wait for each other, so they have different slots. Of every
  // eight slots, 0 and 1 are for greetings and 2 and 3 for payload. The rest, and the top bit,
  // belong to the engine.
  enum class Lane { kCollectives = 0, kMessages = 1 };
  Setting setting(Lane lane, Scratch& scratch) const {
    const Slot first = (base::mix64(id) >> 4) << 3;
    return {*link, members, first + static_cast<Slot>(lane), scratch};
  }
};

// Comm::share: the workers of a Comm map each other's memory. `id` is the same number on every
// worker, and no other arena has it.
struct Wanted {
  std::size_t bytes = 0;
  Comm::Mappings mappings = Comm::Mappings::kShared;
  // Memory of this worker that it shares again, of that many bytes. Null: new memory.
  const Arena* again = nullptr;
};
std::shared_ptr<SharedArena> share(Comm& comm, const Group& group, std::uint64_t id, Wanted wanted);

// What other layers reach of a Comm.
struct Inside {
  // Comm::share, with memory that this worker has shared in another Comm: it keeps what it holds. Each worker has the
  // choice for itself.
  static std::shared_ptr<SharedArena> share_again(Comm& comm, const Arena& own);
  static ArenaBook& book_of(const Comm& comm);  // of its world
  // For those who wait for something that no operation of the Comm brings: throws if the Comm is dead, or if a worker of it
  // has ended; then the Comm is dead, too.
  static void require_all(const Comm& comm);
  static void fail(const Comm& comm, const Error& error);  // ends the Comm, and tells the others
  static void enter(const Comm& comm, std::uint8_t kind, std::shared_ptr<SharedArena> arena);
};

}  // namespace lockstep::comm
