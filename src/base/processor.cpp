#include "base/processor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::base {
namespace {

constexpr std::array<std::string_view, 6> kKeys = {"vendor_id",       "cpu family",  "model",
                                                   "CPU implementer", "CPU variant", "CPU part"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

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

// Compared by bits: a comparison of numbers may take a denormal for zero, too. `volatile` keeps the compiler from
// multiplying ahead of time, where no switch is set.
bool product_is_zero(float number, float factor) noexcept {
  volatile float left = number;
  volatile float product = left * factor;
  return std::bit_cast<std::uint32_t>(static_cast<float>(product)) == 0;
}

}  // namespace

std::string processor_identity_in(std::string_view cpuinfo) {
  std::set<std::string> kinds;
  std::string kind;  // of the processor whose lines are being read
  while (!cpuinfo.empty()) {
    const std::string_view line = cpuinfo.substr(0, cpuinfo.find('\n'));
    cpuinfo.remove_prefix(std::min(line.size() + 1, cpuinfo.size()));
    const auto colon = line.find(':');
    const std::string_view key = trimmed(line.substr(0, colon));
    if (key == "processor") kinds.insert(std::exchange(kind, {}));
    if (colon == std::string_view::npos) continue;
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) continue;
    if (!kind.empty()) kind += ' ';
    kind += trimmed(line.substr(colon + 1));
  }
  kinds.insert(kind);
  kinds.erase("");
  std::string all;
  for (const std::string& one : kinds) all += (all.empty() ? "" : ", ") + one;
  return all.empty() ? "unknown" : all;
}

std::string processor_identity() {
  std::ifstream file("/proc/cpuinfo");
  return processor_identity_in(std::string(std::istreambuf_iterator<char>(file), {}));
}

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
