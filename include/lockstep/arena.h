// Memory of a host that every worker of that host can map. It outlives generations.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/buffer.h>
#include <lockstep/deadline.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// One sealed memfd, mapped into this process. It has no name in any file system, so the kernel
// frees the memory when the last worker that holds it has ended.
//
// Threads:   the object: one caller at a time. The memory: as its users agree.
// Blocking:  never.
// Failure:   Unavailable if the host or the cgroup has too little memory; nothing is taken then.
//            Mismatch if a descriptor is not an arena of the expected size.
// Ownership: unmaps the memory and closes the descriptor. The memory lives while any worker holds
//            it.
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

  // A second mapping of the same memory, for this process alone: it shows what anybody writes to the
  // arena, except on pages that this process has written to through this mapping. Null before
  // map_privately(), which needs the descriptor.
  std::byte* private_data() const { return private_data_; }
  void map_privately();

  // The mappings stay. After this call the arena cannot be handed to another worker.
  void close_descriptor();

  // From now on its addresses show the memory of another arena, which has at most its size. What
  // they showed before is gone. Nobody uses the memory meanwhile.
  void show(const Arena& other);

 private:
  Arena(int fd, std::byte* data, std::size_t size) : fd_(fd), data_(data), size_(size) {}

  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::byte* private_data_ = nullptr;
};

// The arenas of all workers of a Comm, mapped into this process. Comm::share() makes it.
//
// Threads:   the object: any. The memory: as its users agree.
// Blocking:  never.
// Failure:   none. A rank out of range is a bug of the caller.
// Ownership: unmaps all arenas. The memory lives while any worker maps it.
class SharedArena {
 public:
  SharedArena(std::vector<Arena> arenas, int rank) : arenas_(std::move(arenas)), rank_(rank) {}

  // Ranks are those of the Comm that shared the arenas. data() and size() are this worker's own.
  std::byte* of(int rank) const { return arenas_[static_cast<std::size_t>(rank)].data(); }
  std::size_t size_of(int rank) const { return arenas_[static_cast<std::size_t>(rank)].size(); }
  std::byte* data() const { return of(rank_); }
  std::size_t size() const { return size_of(rank_); }
  // The private mapping of a worker's arena; null if share() was not asked for them.
  std::byte* private_of(int rank) const {
    return arenas_[static_cast<std::size_t>(rank)].private_data();
  }
  int workers() const { return static_cast<int>(arenas_.size()); }
  int rank() const { return rank_; }

  // This worker's own has its descriptor, for a process that keeps the memory beyond all workers.
  const Arena& own() const { return arenas_[static_cast<std::size_t>(rank_)]; }
  // As Arena::show, of the arena of a worker.
  void show(int rank, const Arena& other) { arenas_[static_cast<std::size_t>(rank)].show(other); }

 private:
  std::vector<Arena> arenas_;
  int rank_;
};

// Memory of one device for buffers that live long, such as buckets of gradients.
// Comm::device_arena() makes it. It is registered with the engine if the engine can do that; then
// collectives move its bytes without copies of their own.
//
// Threads:   the object: any. The memory: as its users agree.
// Blocking:  the destructor waits until the device has done what was queued before.
// Failure:   none.
// Ownership: frees the memory. The memory may outlive the Comm.
class DeviceArena {
 public:
  virtual ~DeviceArena() = default;

  virtual std::byte* data() const = 0;
  virtual std::size_t size() const = 0;
  virtual Device device() const = 0;

  // Whether the engine has registered it, which happens at the first collective. Only speed depends
  // on it.
  virtual bool registered() const = 0;
};

// Returns the arena of every worker, by rank, mapped into this process. This worker's own arena is
// a second mapping of the same memory. A worker of another host has none. All workers of the
// bootstrap call it, each with an arena of any size, and all with the same `name`. A name is used
// once.
//
// A descriptor is sent to, and accepted from, a process only if the process belongs to the same
// user and has proven the bootstrap's secret. Strangers at the socket are dropped and logged. They
// delay nothing.
//
// Blocking:  until every worker has called it, at most until the deadline.
// Failure:   Timeout names the workers that did not come. PeerLost names those that died meanwhile.
//            Mismatch names those that sent something else than their arena.
std::vector<std::optional<Arena>> share_arenas(const Arena& mine, const std::string& name,
                                               Bootstrap& bootstrap, Deadline deadline);

// The memory that this process can still take: what the host has available, or what the cgroup
// allows if that is less. The cache of files does not count as used.
std::size_t available_memory_bytes();

}  // namespace lockstep
