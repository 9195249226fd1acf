// Elements of every dtype for tests, with conversions that are not the library's.
#pragma once

#include <lockstep/buffer.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep::testing {

// bfloat16 by the definition: the nearest of the two neighbours, ties to the even one.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const std::uint32_t whole = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t low = whole & 0xffffU;
    std::uint32_t high = whole >> 16;
    if (low > 0x8000U || (low == 0x8000U && (high & 1U) != 0)) ++high;
    bits = static_cast<std::uint16_t>(high);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

// float16 by the definition, in double arithmetic: a multiple of the quantum of its binade, ties to
// even.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) {
    const double size = std::fabs(static_cast<double>(value));
    const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
    const double quanta = std::nearbyint(std::ldexp(size, 10 - exponent));
    // A quantum above 2^-24 per binade: the encoding counts quanta, and carries into the exponent
    // by itself.
    const auto code =
        static_cast<std::uint32_t>(quanta) + static_cast<std::uint32_t>(exponent + 14) * 1024;
    bits =
        static_cast<std::uint16_t>((std::signbit(value) ? 0x8000U : 0U) | std::min(code, 0x7c00U));
  }
  explicit operator float() const {
    const int exponent = (bits >> 10) & 31;
    const int fraction = bits & 1023;
    const double size =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return static_cast<float>((bits & 0x8000U) != 0 ? -size : size);
  }
};

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, Float16>) return DType::kFloat16;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::kBFloat16;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::kUInt8;
}

// What sums of T are kept in until the end.
template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;

template <typename T>
Buffer buffer_of(std::vector<T>& elements) {
  return {elements.data(), elements.size(), dtype_of<T>()};
}

// Random bits by number (the last step of SplitMix64), from no memory: half the time of many tests would go to
// std::mt19937 where a sanitizer watches every access.
inline std::uint64_t random_bits(std::uint64_t number) {
  number *= 0x9e3779b97f4a7c15U;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9U;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebU;
  return number ^ (number >> 31);
}

// Values of very different size, so that another order of addition shows in the bits.
template <typename T>
std::vector<T> rough_elements(std::size_t count, std::uint32_t seed) {
  std::vector<T> elements(count);
  std::uint64_t number = std::uint64_t{seed} << 32;
  for (T& element : elements) {
    const std::uint64_t bits = random_bits(++number);
    if constexpr (std::is_integral_v<T>) {
      element = static_cast<T>(bits);
    } else {
      const auto digits = static_cast<float>(bits % 65536) / 32768.0F - 1.0F;
      const auto size = static_cast<float>(1U << (bits >> 32) % 12) / 64.0F;  // 2^-6 to 2^5
      element = static_cast<T>(digits * size);
    }
  }
  return elements;
}

// One such list for every worker.
template <typename T>
std::vector<std::vector<T>> inputs_for(int workers, std::size_t count) {
  std::vector<std::vector<T>> inputs;
  for (int rank = 0; rank < workers; ++rank) {
    inputs.push_back(rough_elements<T>(count, static_cast<std::uint32_t>(1000 * rank + count)));
  }
  return inputs;
}

// The definition of the reduction: a range splits at the largest power of two below its size.
template <typename S, typename Leaf, typename Combine>
S tree_of(int begin, int end, const Leaf& leaf, const Combine& combine) {
  if (end - begin == 1) return leaf(begin);
  int split = 1;
  while (split * 2 < end - begin) split *= 2;
  const S left = tree_of<S>(begin, begin + split, leaf, combine);
  const S right = tree_of<S>(begin + split, end, leaf, combine);
  return combine(left, right);
}

// The sum over `inputs` in the order of the tree, element by element.
template <typename T>
std::vector<T> tree_sum(const std::vector<std::vector<T>>& inputs) {
  const auto add = [](Sum<T> a, Sum<T> b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    } else {
      return a + b;
    }
  };
  std::vector<T> sum(inputs[0].size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = static_cast<T>(tree_of<Sum<T>>(
        0, static_cast<int>(inputs.size()),
        [&](int input) { return static_cast<Sum<T>>(inputs[input][i]); }, add));
  }
  return sum;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace lockstep::testing
