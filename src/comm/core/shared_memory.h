// The arenas that the workers of a host have shared, and how one worker tells another where a
// buffer is in them. Each process maps an arena at another address, so a pointer means nothing to
// another worker.
#pragma once

#include <lockstep/arena.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/core/staging.h"

namespace lockstep::comm {

// Where a buffer is. It means the same to all workers that map the arena.
struct ArenaAddress {
  static constexpr std::uint64_t kStaging = 2;  // numbers of arenas are odd

  std::uint64_t arena = 0;  // 0: the buffer is in memory that is not shared
  std::uint64_t offset = 0;

  bool shared() const { return arena != 0; }
  bool operator==(const ArenaAddress&) const = default;
};

// The shared arenas that this worker knows.
//
// Threads:   any.
// Blocking:  never.
// Failure:   none.
// Ownership: does not own the arenas. The pointer that resolve returns keeps its arena mapped.
class SharedMemory {
 public:
  // `members` are ranks of the link, by the ranks of the arena. The id is the same on all of them.
  void add(std::uint64_t id, std::vector<int> members, std::weak_ptr<SharedArena> arena);

  // The address of this worker's own memory. It is shared only if all of `who`, ranks of the link,
  // have mapped the arena: to another worker the address would mean nothing.
  ArenaAddress locate(const void* data, std::size_t bytes, std::span<const int> who) const;

  // Another worker's memory, mapped here. Null if that worker has no such address, if this worker
  // has dropped the arena, or if the offset is not a multiple of `alignment`. The address comes
  // from a peer, so every number of it is checked.
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

// What the workers of one host share.
struct Host {
  std::string secret;  // a worker proves it before it gets memory of others
  std::string world;
  SharedMemory memory;
  std::optional<Staging> staging;
};

}  // namespace lockstep::comm
