#include "flat/half.h"

#include <bit>
#include <cstdint>

#include "flat/dispatch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lockstep::flat {
namespace {

LOCKSTEP_INLINE float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

LOCKSTEP_INLINE std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const std::uint32_t quiet = bits | 0x400000U;  // a NaN must not round to infinity
  return static_cast<std::uint16_t>((value != value ? quiet : rounded) >> 16);
}

// float16 in both directions, without tables and without branches. It does not rely on subnormal
// floats, because a thread may flush these to zero. This is the definition: the processor's own
// conversions must give the same bits.
LOCKSTEP_INLINE float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
  const std::uint32_t exponent = bits & 0x7c00U;
  const auto tiny = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(bits & 0x3ffU)) * 0x1p-24F);
  const std::uint32_t quiet = (bits & 0x7fffU) > 0x7c00U ? 0x400000U : 0U;
  const std::uint32_t large = (magnitude + 0x70000000U) | quiet;
  const std::uint32_t normal = exponent == 0x7c00U ? large : magnitude + 0x38000000U;
  return std::bit_cast<float>((exponent == 0 ? tiny : normal) | sign);
}

LOCKSTEP_INLINE std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Below 2^-14 a half is subnormal. Adding 0.5 moves its bits, rounded, to the lowest bits of the
  // float.
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const std::uint32_t quiet = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  const std::uint32_t large = magnitude > 0x7f800000U ? quiet : 0x7c00U;  // from 2^16 on
  const std::uint32_t finite = magnitude < 0x38800000U ? tiny : normal;
  return static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000U ? large : finite));
}

struct WidenBFloat16 {
  LOCKSTEP_INLINE static void run(const std::uint16_t* from, float* to, std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) to[i] = from_bfloat16(from[i]);
  }
};

struct NarrowBFloat16 {
  LOCKSTEP_INLINE static void run(const float* from, std::uint16_t* to, std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]);
  }
};

struct WidenFloat16 {
  LOCKSTEP_INLINE static void run(const std::uint16_t* from, float* to, std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) to[i] = from_float16(from[i]);
  }
};

struct NarrowFloat16 {
  LOCKSTEP_INLINE static void run(const float* from, std::uint16_t* to, std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float16(from[i]);
  }
};

// Elements that the processor's own conversions take at a time. The rest is converted by the
// definition.
constexpr std::size_t kAtOnce = 8;

constexpr std::size_t whole_blocks(std::size_t count) {
  return count - count % kAtOnce;
}

#if defined(__x86_64__)
// 8 at a time also with AVX-512. Other loops then read the rows that these fill from the cache.
LOCKSTEP_TARGET_AVX2 void widen_f16c(const std::uint16_t* from, float* to, std::size_t count) {
  const std::size_t whole = whole_blocks(count);
  for (std::size_t i = 0; i < whole; i += kAtOnce) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  WidenFloat16::run(from + whole, to + whole, count - whole);
}

LOCKSTEP_TARGET_AVX2 void narrow_f16c(const float* from, std::uint16_t* to, std::size_t count) {
  const std::size_t whole = whole_blocks(count);
  for (std::size_t i = 0; i < whole; i += kAtOnce) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  NarrowFloat16::run(from + whole, to + whole, count - whole);
}

void widen_float16(const std::uint16_t* from, float* to, std::size_t count) {
  level() == Level::kBaseline ? WidenFloat16::run(from, to, count) : widen_f16c(from, to, count);
}

void narrow_float16(const float* from, std::uint16_t* to, std::size_t count) {
  level() == Level::kBaseline ? NarrowFloat16::run(from, to, count) : narrow_f16c(from, to, count);
}
#elif defined(__aarch64__)
void widen_float16(const std::uint16_t* from, float* to, std::size_t count) {
  const std::size_t whole = whole_blocks(count);
  for (std::size_t i = 0; i < whole; i += kAtOnce) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(from + i));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(halves)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(halves));
  }
  WidenFloat16::run(from + whole, to + whole, count - whole);
}

void narrow_float16(const float* from, std::uint16_t* to, std::size_t count) {
  const std::size_t whole = whole_blocks(count);
  for (std::size_t i = 0; i < whole; i += kAtOnce) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    const float16x8_t halves = vcvt_high_f16_f32(low, vld1q_f32(from + i + 4));
    vst1q_u16(to + i, vreinterpretq_u16_f16(halves));
  }
  NarrowFloat16::run(from + whole, to + whole, count - whole);
}

void widen_bfloat16(const std::uint16_t* from, float* to, std::size_t count) {
  const std::size_t whole = whole_blocks(count);
  for (std::size_t i = 0; i < whole; i += kAtOnce) {
    const uint16x8_t halves = vld1q_u16(from + i);
    vst1q_f32(to + i, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)));
    vst1q_f32(to + i + 4, vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16)));
  }
  WidenBFloat16::run(from + whole, to + whole, count - whole);
}

// The shift rounds ties up: of those the lowest bit is cleared. If there is an infinity or a NaN, all is done again by the
// definition.
void narrow_bfloat16(const float* from, std::uint16_t* to, std::size_t count) {
  const std::size_t whole = whole_blocks(count);
  uint16x8_t special = vdupq_n_u16(0);
  for (std::size_t i = 0; i < whole; i += kAtOnce) {
    const uint32x4_t left = vreinterpretq_u32_f32(vld1q_f32(from + i));
    const uint32x4_t right = vreinterpretq_u32_f32(vld1q_f32(from + i + 4));
    const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(left), vreinterpretq_u16_u32(right));
    const uint16x8_t high = vuzp2q_u16(vreinterpretq_u16_u32(left), vreinterpretq_u16_u32(right));
    const uint16x8_t rounded = vrshrn_high_n_u32(vrshrn_n_u32(left, 16), right, 16);
    const uint16x8_t tie = vshrq_n_u16(vceqq_u16(low, vdupq_n_u16(0x8000)), 15);
    vst1q_u16(to + i, vbicq_u16(rounded, tie));
    special = vorrq_u16(special, vcgeq_u16(vaddq_u16(high, high), vdupq_n_u16(0xff00)));
  }
  const bool again = vmaxvq_u16(special) != 0;
  const std::size_t done = again ? 0 : whole;
  NarrowBFloat16::run(from + done, to + done, count - done);
}
#else
void widen_float16(const std::uint16_t* from, float* to, std::size_t count) {
  WidenFloat16::run(from, to, count);
}

void narrow_float16(const float* from, std::uint16_t* to, std::size_t count) {
  NarrowFloat16::run(from, to, count);
}
#endif

#if !defined(__aarch64__)
void widen_bfloat16(const std::uint16_t* from, float* to, std::size_t count) {
  at_level<WidenBFloat16>(from, to, count);
}

void narrow_bfloat16(const float* from, std::uint16_t* to, std::size_t count) {
  at_level<NarrowBFloat16>(from, to, count);
}
#endif

}  // namespace

void widen(DType half, const void* from, float* to, std::size_t count) {
  const auto* bits = static_cast<const std::uint16_t*>(from);
  if (half == DType::kBFloat16) return widen_bfloat16(bits, to, count);
  widen_float16(bits, to, count);
}

void narrow(DType half, const float* from, void* to, std::size_t count) {
  auto* bits = static_cast<std::uint16_t*>(to);
  if (half == DType::kBFloat16) return narrow_bfloat16(from, bits, count);
  narrow_float16(from, bits, count);
}

}  // namespace lockstep::flat
