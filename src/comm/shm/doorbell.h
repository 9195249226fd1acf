// A bell in the memory of a worker: others ring it, and its own threads sleep at it.
//
// A worker can be killed or stopped between any two instructions, also while it rings. So only a sleeper writes that it
// sleeps: a ringer that took the word back and was killed before it woke anybody would leave a sleeper that nobody sees.
#pragma once

#include <lockstep/deadline.h>

#include <atomic>
#include <cstdint>

namespace lockstep::comm {

// Sleeping on a word in shared memory, between processes.

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4);

// Sleeps while the word is `seen`. Returns when it was woken, when the word was not `seen`, at the deadline,
// and now and then for no reason: the caller looks again.
void futex_wait(const Word& word, std::uint32_t seen, Deadline deadline);

void futex_wake_all(const Word& word);

// A short pause of a loop that looks at memory.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Threads:   any, of any process that maps it.
// Blocking:  sleep, until its deadline.
// Failure:   none.
// Ownership: none; it lies in shared memory.
struct Doorbell {
  alignas(64) Word rung;
  Word sleeping;  // how many threads do; each counts itself in and out

  // For an owner that reads `rung`, looks for work, and sleeps only if `rung` is still the same.
  void ring();
  // For an owner that counts itself in before its last look for work: where nobody sleeps, a look is all it costs.
  void ring_sleepers();

  // Looks at the bell `spins` times, then sleeps: until it has been rung since `seen` was read, until the deadline, and
  // now and then shorter.
  void sleep(std::uint32_t seen, int spins, Deadline deadline);
};

// Counts a thread among those who sleep at a bell.
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
