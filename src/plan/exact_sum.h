// The sum of doubles without any rounding, and its nearest double. So it does not depend on the
// order of the summands, nor on how they are spread over workers: workers add their words up as
// integers.
//
//   words   a fixed-point number with 32 bits in each word, the lowest first. The lowest bit is
//           2^-1074, that of the smallest double. A word has 64 bits, so that carries can wait
//   last 3  how many summands were no number, +infinity and -infinity
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::plan {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: a value.
class ExactSum {
 public:
  static constexpr std::size_t kWords = 71;
  using Words = std::array<std::int64_t, kWords>;

  ExactSum() = default;
  // The sum of up to 2^29 sums' words(), which were added word by word.
  explicit ExactSum(const Words& added) : words_(added) { settle(); }

  void add(double summand);

  // After it, words of up to 2^29 sums can be added.
  const Words& words() {
    settle();
    return words_;
  }

  // The nearest double; of two that are equally near, the even one.
  double value() const;

 private:
  void settle();
  void negate();

  Words words_{};
  std::int64_t unsettled_ = 0;  // summands since carries were moved up
};

}  // namespace lockstep::plan
