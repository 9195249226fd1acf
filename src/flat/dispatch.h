// Which vector instructions the loops over elements use: the widest that the processor has, found
// once.
//
// A loop is written once, in plain C++, as the static function `run` of a struct. at_level()
// compiles it for every level and calls the one for this processor. Levels differ only in speed: no
// element depends on its neighbours, and every vector unit rounds each operation exactly.
//
// On aarch64 the first level is NEON, which every such processor has. The second level has SHA3's
// XOR of three values, which halves the instructions for the parity (rows.h). There is no level for
// SVE, because NEON loops already have the speed of the second-level cache and of memory.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

// A target attribute per function: with -mavx2 for a whole file, inline functions of that file
// would have AVX2, and the linker may use them for other files, too. No ifunc, because it runs
// before the sanitizers do.
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define LOCKSTEP_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))

#define LOCKSTEP_TARGET_SHA3 __attribute__((target("arch=armv8.2-a+sha3")))

// Everything that a loop calls must be inlined into it. Else it is not compiled for the level.
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

// Stands before a loop whose output may be exactly an input, but may not overlap an input in
// another way. Several elements may then be loaded before one is stored. Without it compilers check
// for overlap, and take the slow way if a sum replaces its operand. Builds with sanitizers do not
// use it, so that each access is checked.
#if defined(LOCKSTEP_SANITIZED)
#define LOCKSTEP_VECTOR_LOOP
#elif defined(__clang__)
#define LOCKSTEP_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

#if defined(__aarch64__) && defined(__linux__) && !defined(__clang__)
#define LOCKSTEP_HAS_SHA3_LEVEL
#endif

namespace lockstep::flat {

// The operands of a loop over four, as one parameter.
template <typename T>
struct Four {
  const T* a;
  const T* b;
  const T* c;
  const T* d;

  static Four of(const std::array<const void*, 4>& operands) {
    const auto at = [&](std::size_t i) { return static_cast<const T*>(operands[i]); };
    return {at(0), at(1), at(2), at(3)};
  }
};

enum class Level { kBaseline, kAvx2, kAvx512, kSha3 };

const char* name(Level level) noexcept;

// The levels of this processor, from the slowest to the fastest. kBaseline is always one of them.
std::vector<Level> available_levels();

Level level() noexcept;

// For tests: sets the level of every later call in the process. It must be available.
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
#elif defined(LOCKSTEP_HAS_SHA3_LEVEL)
template <typename Loop, typename... Arguments>
LOCKSTEP_TARGET_SHA3 auto at_sha3(Arguments... arguments) {
  return Loop::run(arguments...);
}
#endif

template <typename Loop, typename... Arguments>
auto at_level(Arguments... arguments) {
#if defined(__x86_64__)
  if (level() == Level::kAvx512) return at_avx512<Loop>(arguments...);
  if (level() == Level::kAvx2) return at_avx2<Loop>(arguments...);
#elif defined(LOCKSTEP_HAS_SHA3_LEVEL)
  if (level() == Level::kSha3) return at_sha3<Loop>(arguments...);
#endif
  return Loop::run(arguments...);
}

}  // namespace lockstep::flat
