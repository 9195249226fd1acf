// Which vector instructions the loops over elements use: the widest that the processor has, looked
// up once.
//
// A loop is written once, in plain C++, as the static function `run` of a struct; at_level()
// compiles it for every level and calls the one for this processor. Levels differ in speed only:
// lanes do not meet, and each operation is exactly rounded in every vector unit.
//
// On aarch64 there is one level, NEON, which the architecture promises. SVE has none: NEON
// loops already go at the speed of the second-level cache and of memory.
#pragma once

#include <vector>

// A target attribute per function, because -mavx2 for a file would leak into inline functions that
// the linker shares with other files; and no ifunc, because it runs before the sanitizers do.
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define LOCKSTEP_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))

// What at_level() compiles must be inlined there to be compiled for the level.
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

// Before a loop whose output may lie exactly where an input lies, and nowhere else among them:
// several elements may then be loaded before one is stored. Without it compilers check for overlap,
// and take the slow way when a sum goes onto its operand. Sanitizers watch one element at a time.
#if defined(LOCKSTEP_SANITIZED)
#define LOCKSTEP_VECTOR_LOOP
#elif defined(__clang__)
#define LOCKSTEP_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

namespace lockstep::comm {

enum class Level { kBaseline, kAvx2, kAvx512 };

const char* name(Level level) noexcept;

// From the slowest to the fastest; kBaseline is always there.
std::vector<Level> available_levels();

Level level() noexcept;

// For tests: the level of every later call in the process, one of the available.
void force_level(Level level);

#if defined(__x86_64__)
template <typename Loop, typename... Arguments>
LOCKSTEP_TARGET_AVX2 auto at_avx2(Arguments... arguments) {
  return Loop::run(arguments...);
}

template <typename Loop, typename... Arguments>
LOCKSTEP_TARGET_AVX512 auto at_avx512(Arguments... arguments) {
  return Loop::run(arguments...);
}
#endif

template <typename Loop, typename... Arguments>
auto at_level(Arguments... arguments) {
#if defined(__x86_64__)
  if (level() == Level::kAvx512) return at_avx512<Loop>(arguments...);
  if (level() == Level::kAvx2) return at_avx2<Loop>(arguments...);
#endif
  return Loop::run(arguments...);
}

}  // namespace lockstep::comm
