#include "base/denormals.h"

#include <bit>
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

// By bits: a comparison of numbers would take a denormal for zero itself.
bool product_is_zero(float number, float factor) noexcept {
  volatile float left = number;
  volatile float product = left * factor;
  return std::bit_cast<std::uint32_t>(static_cast<float>(product)) == 0;
}

}  // namespace

bool flushes_denormals() noexcept {
  constexpr float kLeast = std::numeric_limits<float>::min();
  const bool results = product_is_zero(kLeast, 0.5F);
  const bool operands = product_is_zero(kLeast / 2, 2.0F);
  return results && operands;
}

bool set_flush_denormals(bool on) noexcept {
  set_register(on);
  return flushes_denormals() == on;
}

}  // namespace lockstep::base
