// Arithmetic on single elements. The compilers of the device and of the host compile the same text,
// and the results have the same bits for finite values.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define LOCKSTEP_DEVICE __host__ __device__ __forceinline__
#else
#define LOCKSTEP_DEVICE inline __attribute__((always_inline))
#endif
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define LOCKSTEP_ON_DEVICE 1
#else
#define LOCKSTEP_ON_DEVICE 0
#endif

namespace lockstep::flat::element {

// Each operation is rounded to nearest. The device's intrinsics are never fused into one operation
// with one rounding.
LOCKSTEP_DEVICE float add(float a, float b) {
#if LOCKSTEP_ON_DEVICE
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
LOCKSTEP_DEVICE double add(double a, double b) {
#if LOCKSTEP_ON_DEVICE
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
LOCKSTEP_DEVICE float multiply(float a, float b) {
#if LOCKSTEP_ON_DEVICE
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
LOCKSTEP_DEVICE double multiply(double a, double b) {
#if LOCKSTEP_ON_DEVICE
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
LOCKSTEP_DEVICE float subtract(float a, float b) {
#if LOCKSTEP_ON_DEVICE
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}
LOCKSTEP_DEVICE double subtract(double a, double b) {
#if LOCKSTEP_ON_DEVICE
  return __dsub_rn(a, b);
#else
  return a - b;
#endif
}
LOCKSTEP_DEVICE float divide(float a, float b) {
#if LOCKSTEP_ON_DEVICE
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
LOCKSTEP_DEVICE double divide(double a, double b) {
#if LOCKSTEP_ON_DEVICE
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}
LOCKSTEP_DEVICE float square_root(float a) {
#if LOCKSTEP_ON_DEVICE
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}
LOCKSTEP_DEVICE double square_root(double a) {
#if LOCKSTEP_ON_DEVICE
  return __dsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}
// The second if one of them is a NaN.
template <typename T>
LOCKSTEP_DEVICE T larger(T a, T b) {
  return a > b ? a : b;
}
// A value limited to −most … most. A NaN stays a NaN.
template <typename T>
LOCKSTEP_DEVICE T limited(T value, T most) {
  const T below = value > most ? most : value;
  return below < -most ? -most : below;
}
// Integers wrap around.
template <typename T>
LOCKSTEP_DEVICE T add(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
}

LOCKSTEP_DEVICE std::uint32_t bits_of(float value) {
#if LOCKSTEP_ON_DEVICE
  return __float_as_uint(value);
#else
  return std::bit_cast<std::uint32_t>(value);
#endif
}
LOCKSTEP_DEVICE std::uint64_t bits_of(double value) {
#if LOCKSTEP_ON_DEVICE
  return static_cast<std::uint64_t>(__double_as_longlong(value));
#else
  return std::bit_cast<std::uint64_t>(value);
#endif
}
LOCKSTEP_DEVICE float float_of(std::uint32_t bits) {
#if LOCKSTEP_ON_DEVICE
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
LOCKSTEP_DEVICE std::uint16_t bits_of(BFloat16 value) {
  return value.bits;
}
LOCKSTEP_DEVICE std::uint16_t bits_of(Float16 value) {
  return value.bits;
}

// A type in memory: the type in which it is added, and how to convert to it and back.
template <typename T>
struct Stored {
  using Sum = T;
  LOCKSTEP_DEVICE static Sum load(T value) { return value; }
  LOCKSTEP_DEVICE static T store(Sum value) { return value; }
};

template <>
struct Stored<BFloat16> {
  using Sum = float;
  LOCKSTEP_DEVICE static float load(BFloat16 value) {
    return float_of(static_cast<std::uint32_t>(value.bits) << 16);
  }
  LOCKSTEP_DEVICE static BFloat16 store(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const std::uint32_t quiet = bits | 0x400000U;  // a NaN must not round to infinity
    return {static_cast<std::uint16_t>((value != value ? quiet : rounded) >> 16)};
  }
};

// The same conversions as in flat/half.cpp, which explains them.
template <>
struct Stored<Float16> {
  using Sum = float;
  LOCKSTEP_DEVICE static float load(Float16 value) {
    const std::uint32_t bits = value.bits;
    const std::uint32_t sign = (bits & 0x8000U) << 16;
    const std::uint32_t magnitude = (bits & 0x7fffU) << 13;
    const std::uint32_t exponent = bits & 0x7c00U;
    if (exponent == 0) {
      const float tiny = multiply(static_cast<float>(static_cast<int>(bits & 0x3ffU)), 0x1p-24F);
      return float_of(bits_of(tiny) | sign);
    }
    if (exponent != 0x7c00U) return float_of((magnitude + 0x38000000U) | sign);
    const std::uint32_t quiet = (bits & 0x7fffU) > 0x7c00U ? 0x400000U : 0U;
    return float_of((magnitude + 0x70000000U) | quiet | sign);
  }
  LOCKSTEP_DEVICE static Float16 store(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    std::uint32_t half = 0;
    if (magnitude >= 0x47800000U) {
      half = magnitude > 0x7f800000U ? 0x7e00U | ((magnitude >> 13) & 0x3ffU) : 0x7c00U;
    } else if (magnitude < 0x38800000U) {
      half = bits_of(add(float_of(magnitude), 0.5F)) - 0x3f000000U;
    } else {
      half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    return {static_cast<std::uint16_t>(sign | half)};
  }
};

// Elements that travel together between memory and registers.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T at[kWidth];
};

}  // namespace lockstep::flat::element
