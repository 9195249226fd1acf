#include "plan/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace lockstep::plan {
namespace {

constexpr std::size_t kNotANumber = ExactSum::kWords - 3;
constexpr std::size_t kInfinite = ExactSum::kWords - 2;
constexpr std::size_t kMinusInfinite = ExactSum::kWords - 1;
constexpr std::size_t kTop = kNotANumber - 1;  // the highest word of the number; it has the sign

constexpr int kBits = 32;  // of a word
constexpr std::int64_t kWordMask = (std::int64_t{1} << kBits) - 1;
constexpr int kLowest = -1074;  // exponent of the lowest bit
constexpr int kMantissa = 53;   // bits of a double's mantissa
constexpr std::int64_t kMostUnsettled = std::int64_t{1} << 29;

bool bit_at(const ExactSum::Words& words, int position) {
  const auto word = static_cast<std::size_t>(position / kBits);
  return ((words[word] >> (position % kBits)) & 1) != 0;
}

bool any_below(const ExactSum::Words& words, int position) {
  for (int word = 0; word < position / kBits; ++word) {
    if (words[static_cast<std::size_t>(word)] != 0) return true;
  }
  const std::int64_t mask = (std::int64_t{1} << (position % kBits)) - 1;
  return (words[static_cast<std::size_t>(position / kBits)] & mask) != 0;
}

// Position of the highest bit that is set; -1 if the number is 0. No word is negative.
int highest_bit(const ExactSum::Words& words) {
  for (std::size_t word = kTop + 1; word-- > 0;) {
    if (words[word] == 0) continue;
    const auto bits = std::bit_width(static_cast<std::uint64_t>(words[word]));
    return static_cast<int>(word) * kBits + static_cast<int>(bits) - 1;
  }
  return -1;
}

// The nearest double of a number that is not negative.
double nearest(const ExactSum::Words& words) {
  const int high = highest_bit(words);
  const int low = high < kMantissa ? 0 : high - kMantissa + 1;
  std::uint64_t mantissa = 0;
  for (int position = high; position >= low; --position)
    mantissa = mantissa * 2 + (bit_at(words, position) ? 1 : 0);
  const bool half = low > 0 && bit_at(words, low - 1);
  if (half && (any_below(words, low - 1) || mantissa % 2 == 1)) ++mantissa;
  return std::ldexp(static_cast<double>(mantissa), low + kLowest);
}

}  // namespace

void ExactSum::add(double summand) {
  if (std::isnan(summand)) {
    ++words_[kNotANumber];
  } else if (std::isinf(summand)) {
    ++words_[summand > 0 ? kInfinite : kMinusInfinite];
  } else {
    int exponent = 0;
    // A whole number of 53 bits times 2^exponent; fewer bits where the lowest would be below 2^-1074.
    double whole = std::ldexp(std::frexp(std::abs(summand), &exponent), kMantissa);
    exponent -= kMantissa;
    if (exponent < kLowest) {
      whole = std::ldexp(whole, exponent - kLowest);
      exponent = kLowest;
    }
    const int position = exponent - kLowest;
    const auto mantissa = static_cast<std::uint64_t>(whole);
    const int shift = position % kBits;
    const std::int64_t sign = summand < 0 ? -1 : 1;
    // Three words: 53 bits that are shifted by up to 31.
    const std::uint64_t low = (mantissa & kWordMask) << shift;
    const std::uint64_t high = ((mantissa >> kBits) << shift) + (low >> kBits);
    const auto word = static_cast<std::size_t>(position / kBits);
    words_[word] += sign * static_cast<std::int64_t>(low & kWordMask);
    words_[word + 1] += sign * static_cast<std::int64_t>(high & kWordMask);
    words_[word + 2] += sign * static_cast<std::int64_t>(high >> kBits);
  }
  if (++unsettled_ == kMostUnsettled) settle();
}

// Moves carries up. Then every word but the top has 32 bits and is not negative.
void ExactSum::settle() {
  for (std::size_t word = 0; word < kTop; ++word) {
    words_[word + 1] += words_[word] >> kBits;
    words_[word] &= kWordMask;
  }
  unsettled_ = 0;
}

void ExactSum::negate() {
  for (std::size_t word = 0; word <= kTop; ++word) words_[word] = -words_[word];
  settle();
}

double ExactSum::value() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool up = words_[kInfinite] > 0;
  const bool down = words_[kMinusInfinite] > 0;
  if (words_[kNotANumber] > 0 || (up && down)) return std::numeric_limits<double>::quiet_NaN();
  if (up || down) return up ? kInfinity : -kInfinity;
  ExactSum sum = *this;
  sum.settle();
  const bool negative = sum.words_[kTop] < 0;
  if (negative) sum.negate();
  return negative ? -nearest(sum.words_) : nearest(sum.words_);
}

}  // namespace lockstep::plan
