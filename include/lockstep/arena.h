// Memory of the host that outlives generations: every worker of the host can map it.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/buffer.h>
#include <lockstep/deadline.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// One sealed memfd, mapped. No name in any file system: when the last worker is gone, so is the
// memory.
//
// Threads:   the object, one at a time; the memory, as its users agree.
// Blocking:  never.
// Failure:   Unavailable when the host or the cgroup has not that much memory, before any is taken;
//            Mismatch when a descriptor is not an arena of the expected size.
// Ownership: unmaps and closes its descriptor; the memory lives while any worker holds it.
class Arena {
 public:
  // Zeroed memory of at least one byte, rounded up to pages.
  static Arena create(std::size_t bytes);

  // Maps an arena that another worker created. Takes its own copy of the descriptor. The sender
  // is not trusted: a descriptor without the seals, or of another size, is refused.
  static Arena attach(int fd, std::size_t expected_bytes);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_; }

  // The mapping stays; nobody can be handed this arena after.
  void close_descriptor();

 private:
  Arena(int fd, std::byte* data, std::size_t size) : fd_(fd), data_(data), size_(size) {}

  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Everybody's arenas, mapped here; Comm::share makes them.
//
// Threads:   any; the memory, as its users agree.
// Blocking:  never.
// Failure:   none; a rank out of range is a bug of the caller.
// Ownership: unmaps them all. The memory lives while any worker maps it.
class SharedArena {
 public:
  SharedArena(std::vector<Arena> arenas, int rank) : arenas_(std::move(arenas)), rank_(rank) {}

  // By the ranks of the Comm that shared them; data() and size() are this worker's own.
  std::byte* of(int rank) const { return arenas_[static_cast<std::size_t>(rank)].data(); }
  std::size_t size_of(int rank) const { return arenas_[static_cast<std::size_t>(rank)].size(); }
  std::byte* data() const { return of(rank_); }
  std::size_t size() const { return size_of(rank_); }
  int workers() const { return static_cast<int>(arenas_.size()); }
  int rank() const { return rank_; }

 private:
  std::vector<Arena> arenas_;
  int rank_;
};

// Memory of one device for buffers that live long, such as buckets of gradients; Comm::device_arena makes it. Registered with the
// engine where the engine can, so that collectives move its bytes without copies of their own.
//
// Threads:   any; the memory, as its users agree.
// Blocking:  the destructor, until the device is done with what was queued before.
// Failure:   none.
// Ownership: frees the memory, which may outlive the Comm.
class DeviceArena {
 public:
  virtual ~DeviceArena() = default;

  virtual std::byte* data() const = 0;
  virtual std::size_t size() const = 0;
  virtual Device device() const = 0;

  // Whether the engine has taken it, which it does with the first collective; a matter of speed alone.
  virtual bool registered() const = 0;
};

// Every worker's arena, by rank, mapped here; this worker's own as a second mapping of the same
// memory. Workers of other hosts have none. Called by all workers of the bootstrap, each with an
// arena of any size, with the same `name`, each name once.
//
// Descriptors go only to processes of the same user that have proven the bootstrap's secret, and
// come only from such. Strangers at the socket are dropped, logged, and hold up nothing.
//
// Blocking:  until every worker has called it, by the deadline.
// Failure:   Timeout naming the workers that did not come, PeerLost those that died on the way,
//            Mismatch those that sent something else than their arena.
std::vector<std::optional<Arena>> share_arenas(const Arena& mine, const std::string& name,
                                               Bootstrap& bootstrap, Deadline deadline);

// What can still be taken: the least of the host's available memory and of the cgroup's headroom,
// the cache of files not counted as used.
std::size_t available_memory_bytes();

}  // namespace lockstep
