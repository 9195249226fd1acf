#include "flat/fold.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "flat/dispatch.h"

namespace lockstep {

const char* name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
  }
  return "?";
}

const char* name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "?";
}

}  // namespace lockstep

namespace lockstep::flat {
namespace {

struct Add {
  template <typename T>
  LOCKSTEP_INLINE static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Least {
  template <typename T>
  LOCKSTEP_INLINE static T of(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};

struct Most {
  template <typename T>
  LOCKSTEP_INLINE static T of(T a, T b) {
    return (b > a || b != b) ? b : a;
  }
};

template <typename T, typename Op>
struct Combine {
  LOCKSTEP_INLINE static void run(const T* left, const T* right, T* out, std::size_t count) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) out[i] = Op::of(left[i], right[i]);
  }
};

template <typename T, typename Op>
struct CombineAndScale {
  LOCKSTEP_INLINE static void run(const T* left, const T* right, T* out, std::size_t count,
                                  T factor) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) out[i] = Op::of(left[i], right[i]) * factor;
  }
};

template <typename T>
struct AddFour {
  LOCKSTEP_INLINE static void run(Four<T> from, T* out, std::size_t count) {
    const auto [a, b, c, d] = from;
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) out[i] = (a[i] + b[i]) + (c[i] + d[i]);
  }
};

template <typename T>
struct AddFourAndScale {
  LOCKSTEP_INLINE static void run(Four<T> from, T* out, std::size_t count, T factor) {
    const auto [a, b, c, d] = from;
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) out[i] = ((a[i] + b[i]) + (c[i] + d[i])) * factor;
  }
};

template <typename T>
struct Scale {
  LOCKSTEP_INLINE static void run(const T* from, T* out, std::size_t count, T factor) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) out[i] = from[i] * factor;
  }
};

// The compiler keeps two arrays of half of the lanes in registers, and not one array of all.
template <typename T>
struct SumOfSquares {
  static constexpr std::size_t kHalf = kSquareLanes / 2;

  LOCKSTEP_INLINE static void add(const T* from, double (&lanes)[kHalf]) {
    for (std::size_t lane = 0; lane < kHalf; ++lane) {
      const auto value = static_cast<double>(from[lane]);
      lanes[lane] += value * value;
    }
  }
  LOCKSTEP_INLINE static double run(const T* from, std::size_t count) {
    double low[kHalf] = {};
    double high[kHalf] = {};
    std::size_t i = 0;
    for (; i + kSquareLanes <= count; i += kSquareLanes) {
      add(from + i, low);
      add(from + i + kHalf, high);
    }
    double lanes[kSquareLanes];
    std::copy_n(low, kHalf, lanes);
    std::copy_n(high, kHalf, lanes + kHalf);
    for (std::size_t lane = 0; i < count; ++lane, ++i) {
      const auto value = static_cast<double>(from[i]);
      lanes[lane] += value * value;
    }
    for (std::size_t left = kHalf; left > 0; left /= 2) {
      for (std::size_t lane = 0; lane < left; ++lane) {
        lanes[lane] = lanes[2 * lane] + lanes[2 * lane + 1];
      }
    }
    return lanes[0];
  }
};

// The bits of magnitudes are ordered as the magnitudes are, with NaNs above infinity.
template <typename T>
struct Largest {
  LOCKSTEP_INLINE static double run(const T* from, std::size_t count) {
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    constexpr Bits kMagnitude = ~Bits{0} >> 1;
    Bits most = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Bits bits = std::bit_cast<Bits>(from[i]) & kMagnitude;
      most = bits > most ? bits : most;
    }
    return static_cast<double>(std::bit_cast<T>(most));
  }
};

template <typename T>
struct Limit {
  LOCKSTEP_INLINE static void run(const T* from, T* out, std::size_t count, T most) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) {
      const T below = from[i] > most ? most : from[i];
      out[i] = below < -most ? -most : below;
    }
  }
};

template <typename T, typename Op>
void combine_with(double factor, const T* left, const T* right, T* out, std::size_t count) {
  if constexpr (std::is_floating_point_v<T>) {
    if (factor != 1) {
      return at_level<CombineAndScale<T, Op>>(left, right, out, count, static_cast<T>(factor));
    }
  }
  LOCKSTEP_CHECK(std::is_floating_point_v<T> || factor == 1, "whole numbers have no factor");
  at_level<Combine<T, Op>>(left, right, out, count);
}

template <typename T>
void combine_as(const Fold& fold, const void* left, const void* right, void* out,
                std::size_t count) {
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  auto* to = static_cast<T*>(out);
  switch (fold.op) {
    case ReduceOp::kSum:
      return combine_with<T, Add>(fold.factor, a, b, to, count);
    case ReduceOp::kMin:
      return combine_with<T, Least>(fold.factor, a, b, to, count);
    case ReduceOp::kMax:
      return combine_with<T, Most>(fold.factor, a, b, to, count);
  }
}

template <typename T>
void add_four_as(double factor, const std::array<const void*, 4>& operands, void* out,
                 std::size_t count) {
  const auto from = Four<T>::of(operands);
  auto* to = static_cast<T*>(out);
  if (factor == 1) return at_level<AddFour<T>>(from, to, count);
  at_level<AddFourAndScale<T>>(from, to, count, static_cast<T>(factor));
}

void combine_half(const Fold& fold, const void* left, const void* right, void* out,
                  std::size_t count) {
  float a[kStripElements];
  float b[kStripElements];
  for (std::size_t first = 0; first < count; first += kStripElements) {
    const std::size_t part = std::min(kStripElements, count - first);
    widen(fold.dtype, static_cast<const std::uint16_t*>(left) + first, a, part);
    widen(fold.dtype, static_cast<const std::uint16_t*>(right) + first, b, part);
    combine_as<float>(fold, a, b, a, part);
    narrow(fold.dtype, a, static_cast<std::uint16_t*>(out) + first, part);
  }
}

// Calls body(row, count) for strips of half-type elements in float32, and rounds what it leaves.
template <typename Body>
void in_float32(DType dtype, const void* from, void* out, std::size_t count, const Body& body) {
  float row[kStripElements];
  for (std::size_t first = 0; first < count; first += kStripElements) {
    const std::size_t part = std::min(kStripElements, count - first);
    widen(dtype, static_cast<const std::uint16_t*>(from) + first, row, part);
    body(row, part);
    narrow(dtype, row, static_cast<std::uint16_t*>(out) + first, part);
  }
}

}  // namespace

void combine(const Fold& fold, const void* left, const void* right, void* out, std::size_t count) {
  switch (fold.dtype) {
    case DType::kFloat32:
      return combine_as<float>(fold, left, right, out, count);
    case DType::kFloat64:
      return combine_as<double>(fold, left, right, out, count);
    case DType::kInt32:
      return combine_as<std::int32_t>(fold, left, right, out, count);
    case DType::kInt64:
      return combine_as<std::int64_t>(fold, left, right, out, count);
    case DType::kUInt8:
      return combine_as<std::uint8_t>(fold, left, right, out, count);
    case DType::kFloat16:
    case DType::kBFloat16:
      return combine_half(fold, left, right, out, count);
  }
}

void add_four(const Fold& fold, const std::array<const void*, 4>& operands, void* out,
              std::size_t count) {
  LOCKSTEP_CHECK(fold.op == ReduceOp::kSum, "four operands are added");
  if (fold.dtype == DType::kFloat32) return add_four_as<float>(fold.factor, operands, out, count);
  LOCKSTEP_CHECK(fold.dtype == DType::kFloat64, "four operands are float32 or float64");
  add_four_as<double>(fold.factor, operands, out, count);
}

void scale(DType dtype, double factor, const void* from, void* out, std::size_t count) {
  if (factor == 1) {
    if (out != from && count > 0) std::memcpy(out, from, count * size_of(dtype));
  } else if (dtype == DType::kFloat32) {
    at_level<Scale<float>>(static_cast<const float*>(from), static_cast<float*>(out), count,
                           static_cast<float>(factor));
  } else if (dtype == DType::kFloat64) {
    at_level<Scale<double>>(static_cast<const double*>(from), static_cast<double*>(out), count,
                            factor);
  } else {
    LOCKSTEP_CHECK(is_half(dtype), "whole numbers have no factor");
    in_float32(dtype, from, out, count, [&](float* row, std::size_t part) {
      scale(DType::kFloat32, factor, row, row, part);
    });
  }
}

double sum_of_squares(DType dtype, const void* from, std::size_t count) {
  LOCKSTEP_CHECK(count <= kStripElements, "squares are summed a strip at a time");
  if (dtype == DType::kFloat32) {
    return at_level<SumOfSquares<float>>(static_cast<const float*>(from), count);
  }
  if (dtype == DType::kFloat64) {
    return at_level<SumOfSquares<double>>(static_cast<const double*>(from), count);
  }
  LOCKSTEP_CHECK(is_half(dtype), "squares of floating-point types");
  float row[kStripElements];
  widen(dtype, from, row, count);
  return at_level<SumOfSquares<float>>(static_cast<const float*>(row), count);
}

double largest(DType dtype, const void* from, std::size_t count) {
  if (dtype == DType::kFloat32)
    return at_level<Largest<float>>(static_cast<const float*>(from), count);
  if (dtype == DType::kFloat64)
    return at_level<Largest<double>>(static_cast<const double*>(from), count);
  LOCKSTEP_CHECK(is_half(dtype), "magnitudes of floating-point types");
  double most = 0;
  float row[kStripElements];
  for (std::size_t first = 0; first < count; first += kStripElements) {
    const std::size_t part = std::min(kStripElements, count - first);
    widen(dtype, static_cast<const std::uint16_t*>(from) + first, row, part);
    most = Most::of(most, at_level<Largest<float>>(static_cast<const float*>(row), part));
  }
  return most;
}

void limit(DType dtype, double most, const void* from, void* out, std::size_t count) {
  if (dtype == DType::kFloat32) {
    return at_level<Limit<float>>(static_cast<const float*>(from), static_cast<float*>(out), count,
                                  static_cast<float>(most));
  }
  if (dtype == DType::kFloat64) {
    return at_level<Limit<double>>(static_cast<const double*>(from), static_cast<double*>(out),
                                   count, most);
  }
  LOCKSTEP_CHECK(is_half(dtype), "whole numbers have no limit");
  in_float32(dtype, from, out, count,
             [&](float* row, std::size_t part) { limit(DType::kFloat32, most, row, row, part); });
}

}  // namespace lockstep::flat
