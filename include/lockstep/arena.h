// Memory of the host that outlives generations: every worker of the host can map it.
#pragma once

#include <cstddef>
#include <string>

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

 private:
  Arena(int fd, std::byte* data, std::size_t size) : fd_(fd), data_(data), size_(size) {}

  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// What can still be taken: the least of the host's available memory and of the cgroup's headroom.
std::size_t available_memory_bytes();

}  // namespace lockstep
