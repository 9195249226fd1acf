#include "base/denormals.h"

#include <cstdint>
#include <limits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::base {
namespace {

#if defined(__x86_64__)
constexpr unsigned kResults = 0x8000;   // FTZ of MXCSR
constexpr unsigned kOperands = 0x0040;  // DAZ

void set_register(bool on) noexcept {
  constexpr unsigned kBoth = kResults | kOperands;
  _mm_setcsr(on ? _mm_getcsr() | kBoth : _mm_getcsr() & ~kBoth);
}
#elif defined(__aarch64__)
constexpr std::uint64_t kBoth = std::uint64_t{1} << 24;  // FZ of FPCR: results and operands

void set_register(bool on) noexcept {
  std::uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  control = on ? control | kBoth : control & ~kBoth;
  asm volatile("msr fpcr, %0" : : "r"(control) : "memory");
}
#else
void set_register(bool) noexcept {}
#endif

}  // namespace

bool flushes_denormals() noexcept {
  volatile float number = std::numeric_limits<float>::min();
  number = number * 0.5F;
  volatile float grown = number * 2.0F;
  return grown == 0;
}

bool set_flush_denormals(bool on) noexcept {
  set_register(on);
  return flushes_denormals() == on;
}

}  // namespace lockstep::base
