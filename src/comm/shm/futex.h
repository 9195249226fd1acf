// Sleeping on a word in shared memory, between processes.
#pragma once

#include <lockstep/deadline.h>

#include <atomic>
#include <cstdint>

namespace lockstep::comm {

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

}  // namespace lockstep::comm
