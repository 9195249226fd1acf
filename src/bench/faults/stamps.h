// When the steps of a job's workers were committed, in memory that the command and the workers share. A worker opens it by
// its place in /proc, so nothing is left of it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/fd.h"

namespace lockstep::bench {

inline constexpr char kStampsVariable[] = "LOCKSTEP_BENCH_STAMPS";

struct Stamp {
  std::atomic<std::int64_t> ns;  // CLOCK_MONOTONIC; 0 while the rest is written
  std::int32_t pid;
  std::int32_t workers;  // of the generation
  std::int64_t step;
};

struct Stamps {
  static constexpr std::size_t kMost = std::size_t{1} << 21;  // 48 MiB, taken as they are written

  std::atomic<bool> stop;  // asks the workers to end
  std::atomic<std::uint64_t> count;
  Stamp all[kMost];

  static std::int64_t now() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  void add(int workers, std::int64_t step) {
    const std::uint64_t at = count.fetch_add(1);
    if (at >= kMost) return;
    all[at].pid = ::getpid();
    all[at].workers = workers;
    all[at].step = step;
    all[at].ns.store(now(), std::memory_order_release);
  }
};

// Null, with errno, if it cannot be mapped.
inline Stamps* map_stamps(int fd) {
  void* const page =
      ::mmap(nullptr, sizeof(Stamps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return page == MAP_FAILED ? nullptr : static_cast<Stamps*>(page);
}

}  // namespace lockstep::bench
