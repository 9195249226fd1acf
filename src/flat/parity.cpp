#include "flat/parity.h"

#include <algorithm>

#include "flat/dispatch.h"
#include "flat/rows.h"

namespace lockstep::flat {
namespace {

template <typename U>
struct XorOf {
  LOCKSTEP_INLINE static Parity run(const U* from, std::size_t count) {
    const Parities all = for_each_row<U, true>(
        count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY { seen.before(at.load(from)); });
    return all.before;
  }
};

template <typename T, bool kLeft, bool kRight, bool kScaled>
struct WatchedSum {
  LOCKSTEP_INLINE static Parity run(const T* left, const T* right, T* out, std::size_t count,
                                    T factor) {
    const Parities all =
        for_each_row<T, true>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
          const auto a = at.stream(left);
          const auto b = at.stream(right);
          if constexpr (kLeft && kRight) {
            seen.before(a, b);
          } else {
            seen.before(kLeft ? a : b);
          }
          at.store(out, kScaled ? (a + b) * factor : a + b);
        });
    return all.before;
  }
};

template <typename T, bool kScaled>
struct WatchedFour {
  LOCKSTEP_INLINE static Parity run(Four<T> from, T* out, std::size_t count, T factor) {
    const Parities all =
        for_each_row<T, true>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
          const auto a = at.stream(from.a);
          const auto b = at.stream(from.b);
          const auto c = at.stream(from.c);
          const auto d = at.stream(from.d);
          seen.before(a, b, c, d);
          const auto sum = (a + b) + (c + d);
          at.store(out, kScaled ? sum * factor : sum);
        });
    return all.before;
  }
};

template <typename T>
Parity watched_four(const Fold& fold, const std::array<const void*, 4>& operands, void* out,
                    std::size_t count) {
  const auto from = Four<T>::of(operands);
  const T factor = static_cast<T>(fold.factor);
  auto* const to = static_cast<T*>(out);
  if (fold.factor == 1) return at_level<WatchedFour<T, false>>(from, to, count, factor);
  return at_level<WatchedFour<T, true>>(from, to, count, factor);
}

template <typename T>
struct WatchedScale {
  LOCKSTEP_INLINE static Parity run(const T* from, T* out, std::size_t count, T factor) {
    const Parities all =
        for_each_row<T, true>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
          const auto value = at.stream(from);
          seen.before(value);
          at.store(out, value * factor);
        });
    return all.before;
  }
};

template <typename T>
struct WatchedCopy {
  LOCKSTEP_INLINE static Parity run(const T* from, T* out, std::size_t count) {
    const Parities all =
        for_each_row<T, true>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
          const auto value = T{0} + at.load(from);
          seen.after(value);
          at.store(out, value);
        });
    return all.after;
  }
};

template <typename T>
struct WatchedAdd {
  LOCKSTEP_INLINE static Parities run(T* into, const T* from, std::size_t count) {
    return for_each_row<T, true>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      const auto old = at.stream(into);
      const auto sum = old + at.stream(from);
      seen.before(old);
      seen.after(sum);
      at.store(into, sum);
    });
  }
};

template <typename U>
Parity parity_as(const void* from, std::size_t count) {
  return at_level<XorOf<U>>(static_cast<const U*>(from), count);
}

template <typename T>
Parity watched_sum(const Fold& fold, const void* left, const void* right, void* out,
                   std::size_t count, ParityOf which) {
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  auto* to = static_cast<T*>(out);
  const T factor = static_cast<T>(fold.factor);
  if (fold.factor == 1) {
    if (which == ParityOf::kLeft)
      return at_level<WatchedSum<T, true, false, false>>(a, b, to, count, factor);
    if (which == ParityOf::kRight)
      return at_level<WatchedSum<T, false, true, false>>(a, b, to, count, factor);
    return at_level<WatchedSum<T, true, true, false>>(a, b, to, count, factor);
  }
  if (which == ParityOf::kLeft)
    return at_level<WatchedSum<T, true, false, true>>(a, b, to, count, factor);
  if (which == ParityOf::kRight)
    return at_level<WatchedSum<T, false, true, true>>(a, b, to, count, factor);
  return at_level<WatchedSum<T, true, true, true>>(a, b, to, count, factor);
}

}  // namespace

Parity parity(DType dtype, const void* from, std::size_t count) {
  switch (size_of(dtype)) {
    case 8:
      return parity_as<std::uint64_t>(from, count);
    case 4:
      return parity_as<std::uint32_t>(from, count);
    case 2:
      return parity_as<std::uint16_t>(from, count);
    default:
      return parity_as<std::uint8_t>(from, count);
  }
}

Parity combine_with_parity(const Fold& fold, const void* left, const void* right, void* out,
                           std::size_t count, ParityOf which) {
  if (fold.op == ReduceOp::kSum && fold.dtype == DType::kFloat32)
    return watched_sum<float>(fold, left, right, out, count, which);
  if (fold.op == ReduceOp::kSum && fold.dtype == DType::kFloat64)
    return watched_sum<double>(fold, left, right, out, count, which);
  Parity seen = 0;  // before `out` is written, which may be an operand
  if (which != ParityOf::kRight) seen ^= parity(fold.dtype, left, count);
  if (which != ParityOf::kLeft) seen ^= parity(fold.dtype, right, count);
  combine(fold, left, right, out, count);
  return seen;
}

Parity add_four_with_parity(const Fold& fold, const std::array<const void*, 4>& operands,
                            const std::array<bool, 4>& watched, void* out, std::size_t count) {
  if (watched == std::array{true, true, true, true}) {
    return fold.dtype == DType::kFloat32 ? watched_four<float>(fold, operands, out, count)
                                         : watched_four<double>(fold, operands, out, count);
  }
  Parity seen = 0;  // before `out` is written, which may be an operand
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (watched[i]) seen ^= parity(fold.dtype, operands[i], count);
  }
  add_four(fold, operands, out, count);
  return seen;
}

Parity scale_with_parity(DType dtype, double factor, const void* from, void* out,
                         std::size_t count) {
  if (dtype == DType::kFloat32) {
    return at_level<WatchedScale<float>>(static_cast<const float*>(from), static_cast<float*>(out),
                                         count, static_cast<float>(factor));
  }
  if (dtype == DType::kFloat64) {
    return at_level<WatchedScale<double>>(static_cast<const double*>(from),
                                          static_cast<double*>(out), count, factor);
  }
  const Parity seen = parity(dtype, from, count);
  scale(dtype, factor, from, out, count);
  return seen;
}

Parity copy_with_parity(DType dtype, const void* from, void* out, std::size_t count) {
  if (dtype == DType::kFloat32) {
    return at_level<WatchedCopy<float>>(static_cast<const float*>(from), static_cast<float*>(out),
                                        count);
  }
  if (dtype == DType::kFloat64) {
    return at_level<WatchedCopy<double>>(static_cast<const double*>(from),
                                         static_cast<double*>(out), count);
  }
  const std::uint64_t zeros[kStripElements] = {};
  for (std::size_t first = 0; first < count; first += kStripElements) {
    const std::size_t bytes = first * size_of(dtype);
    combine(dtype, ReduceOp::kSum, zeros, static_cast<const std::byte*>(from) + bytes,
            static_cast<std::byte*>(out) + bytes, std::min(kStripElements, count - first));
  }
  return parity(dtype, out, count);
}

Parities add_with_parity(DType dtype, void* into, const void* from, std::size_t count) {
  if (dtype == DType::kFloat32) {
    return at_level<WatchedAdd<float>>(static_cast<float*>(into), static_cast<const float*>(from),
                                       count);
  }
  if (dtype == DType::kFloat64) {
    return at_level<WatchedAdd<double>>(static_cast<double*>(into),
                                        static_cast<const double*>(from), count);
  }
  Parities seen;
  seen.before = parity(dtype, into, count);
  combine(dtype, ReduceOp::kSum, into, from, into, count);
  seen.after = parity(dtype, into, count);
  return seen;
}

}  // namespace lockstep::flat
