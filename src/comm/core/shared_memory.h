// The arenas that the workers of a host have shared, and how one tells another where in them a buffer lies.
#pragma once

#include <lockstep/arena.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace lockstep::comm {

// Where a buffer lies, in words that mean the same to all who map its arena.
struct ArenaAddress {
  std::uint64_t arena = 0;  // none: it lies in memory of its worker alone
  std::uint64_t offset = 0;

  bool shared() const { return arena != 0; }
};

// Threads:   any.
// Blocking:  never.
// Failure:   none.
// Ownership: none of the arenas; what resolve gives keeps its arena mapped.
class SharedMemory {
 public:
  // `members` are the link's ranks, by the ranks of the arena. The id is the same for all of them.
  void add(std::uint64_t id, std::vector<int> members, std::weak_ptr<SharedArena> arena);

  // Of this worker's own memory, in an arena that all of `who`, the link's ranks, have mapped: for others it is no address.
  ArenaAddress locate(const void* data, std::size_t bytes, std::span<const int> who) const;

  // Another worker's memory, mapped here; nothing when that worker has no such address or this one has let it go.
  // Its address must be a multiple of `alignment`.
  std::shared_ptr<std::byte> resolve(int link_rank, ArenaAddress address, std::size_t bytes,
                                     std::size_t alignment = 1) const;

 private:
  struct Known {
    std::uint64_t id = 0;
    std::vector<int> members;
    std::weak_ptr<SharedArena> arena;
  };
  mutable base::Mutex mutex_;
  std::vector<Known> known_ LOCKSTEP_GUARDED_BY(mutex_);
};

// What workers of one host have in common.
struct Host {
  std::string secret;  // each proves it to the others before it is handed memory
  std::string world;
  SharedMemory memory;
};

}  // namespace lockstep::comm
