// A bell in the memory of a worker: others ring it, and the worker's own threads sleep on it.
//
// A worker can be killed or stopped between any two instructions, also while it rings. So only the
// sleeper itself writes `sleeping`. If a ringer cleared it and was killed before it woke the
// sleeper, no other ringer would know that somebody sleeps.
#pragma once

#include <lockstep/deadline.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::comm {

// A word in shared memory on which threads of several processes can sleep.
using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4);

// Sleeps while the word is `seen`. Returns if it was woken, if the word is not `seen`, at the
// deadline, and sometimes for no reason. So the caller looks again.
void futex_wait(const Word& word, std::uint32_t seen, Deadline deadline);

void futex_wake_all(const Word& word);

// A short pause in a loop that looks at memory.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// How long a waiter looks at memory before it sleeps.
struct Patience {
  int looks = 0;  // with a short pause between them
  std::chrono::microseconds
      yielding{};  // then it goes on, and lets others have its core in between
};

// Looks until `look` is true, or patience is over.
template <typename Look>
bool look_again(const Patience& patience, const Look& look) {
  constexpr int kLooksBetweenYields = 64;
  for (int i = 0; i < patience.looks; ++i) {
    if (look()) return true;
    spin_pause();
  }
  if (patience.yielding.count() == 0) return false;
  const auto until = std::chrono::steady_clock::now() + patience.yielding;
  do {
    ::sched_yield();
    for (int i = 0; i < kLooksBetweenYields; ++i) {
      if (look()) return true;
      spin_pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

// Takes a cache line from other cores, to write to it soon. (__builtin_prefetch only reads on x86,
// unless the compiler may use all instructions of newer processors. Older ones ignore this one.)
inline void prefetch_to_write(const void* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

// Threads:   any, of any process that maps it.
// Blocking:  sleep blocks until its deadline.
// Failure:   none.
// Ownership: none; it is in shared memory.
struct Doorbell {
  alignas(64) Word rung;
  Word sleeping;  // number of threads that sleep; each adds and subtracts itself

  // For an owner that reads `rung`, looks for work, and sleeps only if `rung` has not changed.
  void ring();
  // For an owner that counts itself in `sleeping` before it looks for work the last time. If nobody
  // sleeps, this costs one load.
  void ring_sleepers();

  // Looks at the bell `spins` times, then sleeps. Returns when the bell was rung after `seen` was
  // read, at the deadline, and sometimes earlier.
  void sleep(std::uint32_t seen, int spins, Deadline deadline);
};

// Counts a thread in `sleeping` while it lives.
class Sleeper {
 public:
  explicit Sleeper(Doorbell& bell) : bell_(bell) {
    bell_.sleeping.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() { bell_.sleeping.fetch_sub(1, std::memory_order_relaxed); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Doorbell& bell_;
};

}  // namespace lockstep::comm
