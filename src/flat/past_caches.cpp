#include "flat/past_caches.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace lockstep::flat {

#if defined(__x86_64__)
// 64 bytes at a time, which is a line.
void copy_past_caches(const void* from, void* out, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const auto* source = static_cast<const std::byte*>(from);
  auto* to = static_cast<std::byte*>(out);
  const std::size_t before = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t head = std::min(before, bytes);
  std::memcpy(to, source, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (std::size_t part = 0; part < kLine; part += sizeof(__m128i)) {
      const auto value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at + part));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + part), value);
    }
  }
  std::memcpy(to + at, source + at, bytes - at);
  _mm_sfence();
}
#else
void copy_past_caches(const void* from, void* out, std::size_t bytes) {
  std::memcpy(out, from, bytes);
}
#endif

Parity copy_past_caches_with_parity(DType dtype, const void* from, void* out, std::size_t count) {
#if defined(__x86_64__)
  std::array<std::uint64_t, 512> row;  // stays in the first cache
  const std::size_t most = sizeof row / size_of(dtype);
  Parity all = 0;
  for (std::size_t first = 0; first < count; first += most) {
    const std::size_t some = std::min(most, count - first);
    const std::size_t at = first * size_of(dtype);
    all ^= copy_with_parity(dtype, static_cast<const std::byte*>(from) + at, row.data(), some);
    copy_past_caches(row.data(), static_cast<std::byte*>(out) + at, some * size_of(dtype));
  }
  return all;
#else
  return copy_with_parity(dtype, from, out, count);
#endif
}

}  // namespace lockstep::flat
