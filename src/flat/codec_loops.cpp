#include "flat/codec_loops.h"

#include <algorithm>
#include <array>
#include <bit>

#include "flat/dispatch.h"

namespace lockstep::flat {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;

struct LargestBits {
  LOCKSTEP_INLINE static std::uint32_t run(const float* from, std::size_t count) {
    // So many at once that no vector waits for the one before it.
    constexpr std::size_t kLanes = 32;
    std::array<std::uint32_t, kLanes> lanes{};
    const std::size_t whole = count - count % kLanes;
    for (std::size_t i = 0; i < whole; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(from[i + lane]) & kMagnitude;
        lanes[lane] = std::max(lanes[lane], magnitude);
      }
    }
    std::uint32_t largest = 0;
    for (const std::uint32_t lane : lanes) largest = std::max(largest, lane);
    for (std::size_t i = whole; i < count; ++i)
      largest = std::max(largest, std::bit_cast<std::uint32_t>(from[i]) & kMagnitude);
    return largest;
  }
};

// Adding 1.5 · 2^23 rounds to an integer, which is then in the lowest bits.
struct Quantise {
  LOCKSTEP_INLINE static void run(const float* from, float factor, std::int8_t* to,
                                  std::size_t count) {
    constexpr float kShift = 0x1.8p23F;
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) {
      const float shifted = from[i] * factor + kShift;
      to[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(shifted));
    }
  }
};

struct Dequantise {
  LOCKSTEP_INLINE static void run(const std::int8_t* from, float factor, float* to,
                                  std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]) * factor;
  }
};

struct AddScaled {
  LOCKSTEP_INLINE static void run(const float* from, float factor, const float* lost, float* to,
                                  std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i] * factor + lost[i];
  }
};

struct Subtract {
  LOCKSTEP_INLINE static void run(const float* sent, const float* decoded, float* lost,
                                  std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) lost[i] = sent[i] - decoded[i];
  }
};

constexpr std::size_t kBits = 8;  // of a byte; its elements are computed side by side

// Stands before a loop over these. Compilers that unroll it whole no longer see that it is one.
#if defined(__clang__)
#define LOCKSTEP_LANES
#else
#define LOCKSTEP_LANES _Pragma("GCC unroll 1")
#endif

LOCKSTEP_INLINE bool is_negative(float value) {
  return std::bit_cast<std::uint32_t>(value) > kMagnitude;
}

struct PackSigns {
  LOCKSTEP_INLINE static void run(const float* from, std::uint8_t* to, std::size_t count) {
    for (std::size_t first = 0; first + kBits <= count; first += kBits) {
      std::uint32_t byte = 0;
      LOCKSTEP_LANES
      for (std::uint32_t i = 0; i < kBits; ++i)
        byte |= (std::bit_cast<std::uint32_t>(from[first + i]) >> 31) << i;
      to[first / kBits] = static_cast<std::uint8_t>(byte);
    }
    if (count % kBits == 0) return;
    std::uint32_t byte = 0;
    for (std::size_t i = count - count % kBits; i < count; ++i)
      byte |= (is_negative(from[i]) ? 1U : 0U) << (i % kBits);
    to[count / kBits] = static_cast<std::uint8_t>(byte);
  }
};

struct UnpackSigns {
  LOCKSTEP_INLINE static void run(const std::uint8_t* from, float positive, float negative,
                                  float* to, std::size_t count) {
    for (std::size_t first = 0; first + kBits <= count; first += kBits) {
      const std::uint32_t byte = from[first / kBits];
      LOCKSTEP_LANES
      for (std::uint32_t i = 0; i < kBits; ++i)
        to[first + i] = ((byte >> i) & 1U) != 0 ? negative : positive;
    }
    for (std::size_t i = count - count % kBits; i < count; ++i)
      to[i] = ((from[i / kBits] >> (i % kBits)) & 1U) != 0 ? negative : positive;
  }
};

struct SumsBySign {
  // Half of v + |v| is v or 0; so is half of v − |v|. Without a choice it is a vector's work.
  LOCKSTEP_INLINE static void add(float element, double& positive, double& negative) {
    const auto value = static_cast<double>(element);
    const double size = value < 0 ? -value : value;
    positive += 0.5 * (value + size);
    negative += 0.5 * (value - size);
  }
  LOCKSTEP_INLINE static SignedSums run(const float* from, std::size_t count) {
    std::array<double, kBits> positive{};
    std::array<double, kBits> negative{};
    const std::size_t whole = count - count % kBits;
    for (std::size_t first = 0; first < whole; first += kBits) {
      for (std::size_t lane = 0; lane < kBits; ++lane)
        add(from[first + lane], positive[lane], negative[lane]);
    }
    for (std::size_t i = whole; i < count; ++i)
      add(from[i], positive[i - whole], negative[i - whole]);
    SignedSums sums;
    for (std::size_t i = 0; i < count; ++i)
      sums.negatives += std::bit_cast<std::uint32_t>(from[i]) >> 31;
    for (std::size_t half = kBits / 2; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane) {
        positive[lane] += positive[lane + half];
        negative[lane] += negative[lane + half];
      }
    }
    sums.positive = positive[0];
    sums.negative = negative[0];
    return sums;
  }
};

}  // namespace

std::uint32_t largest_bits(const float* from, std::size_t count) {
  return at_level<LargestBits>(from, count);
}

void quantise(const float* from, float factor, std::int8_t* to, std::size_t count) {
  at_level<Quantise>(from, factor, to, count);
}

void dequantise(const std::int8_t* from, float factor, float* to, std::size_t count) {
  at_level<Dequantise>(from, factor, to, count);
}

void add_scaled(const float* from, float factor, const float* lost, float* to, std::size_t count) {
  at_level<AddScaled>(from, factor, lost, to, count);
}

void subtract(const float* sent, const float* decoded, float* lost, std::size_t count) {
  at_level<Subtract>(sent, decoded, lost, count);
}

void pack_signs(const float* from, std::uint8_t* to, std::size_t count) {
  at_level<PackSigns>(from, to, count);
}

void unpack_signs(const std::uint8_t* from, float positive, float negative, float* to,
                  std::size_t count) {
  at_level<UnpackSigns>(from, positive, negative, to, count);
}

SignedSums sums_by_sign(const float* from, std::size_t count) {
  return at_level<SumsBySign>(from, count);
}

}  // namespace lockstep::flat
