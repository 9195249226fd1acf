#include "flat/dispatch.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(LOCKSTEP_HAS_SHA3_LEVEL)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace lockstep::flat {
namespace {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows the name.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && has_f16c();
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}
#else
bool has_avx2() {
  return false;
}
bool has_avx512() {
  return false;
}
#endif

bool has_sha3() {
#if defined(LOCKSTEP_HAS_SHA3_LEVEL)
  return (::getauxval(AT_HWCAP) & HWCAP_SHA3) != 0;
#else
  return false;
#endif
}

std::atomic<Level>& chosen() {
  static std::atomic<Level> level{available_levels().back()};
  return level;
}

}  // namespace

const char* name(Level level) noexcept {
  switch (level) {
    case Level::kBaseline:
      return "baseline";
    case Level::kAvx2:
      return "avx2";
    case Level::kAvx512:
      return "avx512";
    case Level::kSha3:
      return "sha3";
  }
  return "unknown";
}

std::vector<Level> available_levels() {
  std::vector<Level> levels{Level::kBaseline};
  if (has_avx2()) levels.push_back(Level::kAvx2);
  if (has_avx2() && has_avx512()) levels.push_back(Level::kAvx512);
  if (has_sha3()) levels.push_back(Level::kSha3);
  return levels;
}

Level level() noexcept {
  return chosen().load(std::memory_order_relaxed);
}

void force_level(Level level) {
  const std::vector<Level> levels = available_levels();
  LOCKSTEP_CHECK(std::find(levels.begin(), levels.end(), level) != levels.end(),
                 "a level that this processor has");
  chosen().store(level, std::memory_order_relaxed);
}

}  // namespace lockstep::flat
