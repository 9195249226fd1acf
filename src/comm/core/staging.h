// Memory of each worker that all workers of the host have mapped from the start. An operand that
// lies elsewhere is copied there, and the result back. Messages would copy as much, and wait for
// each other in between.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::comm {

inline constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

// Threads:   any.
// Blocking:  never.
// Failure:   none.
// Ownership: borrows the memory. One operation of this worker has it at a time.
class Staging {
 public:
  Staging(std::vector<std::byte*> memory, int rank) : memory_(std::move(memory)), rank_(rank) {}

  // This worker's memory, until give_back(). Null if another operation has it, or if the bytes do
  // not fit.
  std::byte* take(std::size_t bytes) {
    return bytes > kStagingBytes || taken_.test_and_set() ? nullptr : own();
  }
  void give_back() { taken_.clear(); }

  std::byte* own() const { return of(rank_); }
  std::byte* of(int link_rank) const { return memory_[static_cast<std::size_t>(link_rank)]; }

 private:
  std::vector<std::byte*> memory_;  // by rank of the link
  int rank_;
  std::atomic_flag taken_;
};

}  // namespace lockstep::comm
