#include "comm/core/kernels.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace lockstep::comm {
namespace {

// Elements of a piece: two operands and a result of 8 bytes each stay within a first-level cache.
constexpr std::size_t kPiece = 1024;

template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <typename T>
T least(T a, T b) {
  return (b < a || b != b) ? b : a;
}

template <typename T>
T most(T a, T b) {
  return (b > a || b != b) ? b : a;
}

template <typename T>
void combine_typed(ReduceOp op, const T* left, const T* right, T* out, std::size_t count) {
  switch (op) {
    case ReduceOp::kSum:
      for (std::size_t i = 0; i < count; ++i) out[i] = add(left[i], right[i]);
      return;
    case ReduceOp::kMin:
      for (std::size_t i = 0; i < count; ++i) out[i] = least(left[i], right[i]);
      return;
    case ReduceOp::kMax:
      for (std::size_t i = 0; i < count; ++i) out[i] = most(left[i], right[i]);
      return;
  }
}

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;  // a NaN must not round to infinity
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

// Both directions without tables, without branches that depend on data in the common case, and
// without subnormal floats, which a thread may have been told to flush.
float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
  const std::uint32_t exponent = bits & 0x7c00U;
  const float tiny = static_cast<float>(bits & 0x3ffU) * 0x1p-24F;
  const std::uint32_t normal = magnitude + (exponent == 0x7c00U ? 0x70000000U : 0x38000000U);
  return std::bit_cast<float>((exponent == 0 ? std::bit_cast<std::uint32_t>(tiny) : normal) | sign);
}

std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude >= 0x47800000U) {  // 2^16 and beyond, infinity, NaN
    half = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  } else if (magnitude < 0x38800000U) {  // a subnormal half: adding 0.5 puts its bits last, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
  } else {
    half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

void combine_half(DType dtype, ReduceOp op, const void* left, const void* right, void* out,
                  std::size_t count) {
  float a[kPiece];
  float b[kPiece];
  for (std::size_t first = 0; first < count; first += kPiece) {
    const std::size_t part = std::min(kPiece, count - first);
    widen(dtype, static_cast<const std::uint16_t*>(left) + first, a, part);
    widen(dtype, static_cast<const std::uint16_t*>(right) + first, b, part);
    combine_typed<float>(op, a, b, a, part);
    narrow(dtype, a, static_cast<std::uint16_t*>(out) + first, part);
  }
}

template <typename T>
void combine_as(ReduceOp op, const void* left, const void* right, void* out, std::size_t count) {
  combine_typed(op, static_cast<const T*>(left), static_cast<const T*>(right), static_cast<T*>(out),
                count);
}

}  // namespace

void combine(DType dtype, ReduceOp op, const void* left, const void* right, void* out,
             std::size_t count) {
  switch (dtype) {
    case DType::kFloat32:
      return combine_as<float>(op, left, right, out, count);
    case DType::kFloat64:
      return combine_as<double>(op, left, right, out, count);
    case DType::kInt32:
      return combine_as<std::int32_t>(op, left, right, out, count);
    case DType::kInt64:
      return combine_as<std::int64_t>(op, left, right, out, count);
    case DType::kUInt8:
      return combine_as<std::uint8_t>(op, left, right, out, count);
    case DType::kFloat16:
    case DType::kBFloat16:
      return combine_half(dtype, op, left, right, out, count);
  }
}

void widen(DType half, const void* from, float* to, std::size_t count) {
  const auto* bits = static_cast<const std::uint16_t*>(from);
  if (half == DType::kBFloat16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from_bfloat16(bits[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = from_float16(bits[i]);
  }
}

void narrow(DType half, const float* from, void* to, std::size_t count) {
  auto* bits = static_cast<std::uint16_t*>(to);
  if (half == DType::kBFloat16) {
    for (std::size_t i = 0; i < count; ++i) bits[i] = to_bfloat16(from[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) bits[i] = to_float16(from[i]);
  }
}

TreeSum::TreeSum(const plan::Reduction& plan, DType dtype, ReduceOp op)
    : dtype_(dtype), op_(op), operands_(plan.operands.size()) {
  // Additions come in an order in which every result is used once: a stack of scratch rows is
  // enough.
  std::vector<int> free_rows;
  std::vector<int> row_of(plan.additions.size(), -1);
  const auto place = [&](int number) -> Place {
    if (number < static_cast<int>(operands_)) return {false, number};
    const int row = row_of[number - operands_];
    free_rows.push_back(row);
    return {true, row};
  };
  int rows = 0;
  for (std::size_t i = 0; i < plan.additions.size(); ++i) {
    Step step;
    step.left = place(plan.additions[i].left);
    step.right = place(plan.additions[i].right);
    if (free_rows.empty()) free_rows.push_back(rows++);
    step.into = free_rows.back();
    free_rows.pop_back();
    row_of[i] = step.into;
    steps_.push_back(step);
  }
  // Half operands are widened into two rows of their own.
  const int widened = is_half(dtype) ? 2 : 0;
  rows_.assign(rows + widened, std::vector<std::byte>(kPiece * size_of(sum_type(dtype))));
}

const void* TreeSum::locate(Place place, std::span<const void* const> operands,
                            std::size_t first) const {
  if (place.scratch) return rows_[place.index].data();
  return static_cast<const std::byte*>(operands[place.index]) + first * size_of(dtype_);
}

void TreeSum::run_piece(std::span<const void* const> operands, void* out, std::size_t first,
                        std::size_t count) {
  auto* const target = static_cast<std::byte*>(out) + first * size_of(dtype_);
  const bool half = is_half(dtype_);
  const auto widened = [&](Place place, std::size_t row) -> const void* {
    const void* source = locate(place, operands, first);
    if (!half || place.scratch) return source;
    auto* wide = reinterpret_cast<float*>(rows_[rows_.size() - 2 + row].data());
    widen(dtype_, source, wide, count);
    return wide;
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const bool last = i + 1 == steps_.size();
    const void* left = widened(steps_[i].left, 0);
    const void* right = widened(steps_[i].right, 1);
    void* into = last && !half ? target : rows_[steps_[i].into].data();
    combine(sum_type(dtype_), op_, left, right, into, count);
    if (last && half) narrow(dtype_, reinterpret_cast<const float*>(into), target, count);
  }
}

void TreeSum::run(std::span<const void* const> operands, void* out, std::size_t count) {
  LOCKSTEP_CHECK(operands.size() == operands_, "one pointer for every operand of the plan");
  if (steps_.empty()) {
    if (operands[0] != out) std::memcpy(out, operands[0], count * size_of(dtype_));
    return;
  }
  for (std::size_t first = 0; first < count; first += kPiece) {
    run_piece(operands, out, first, std::min(kPiece, count - first));
  }
}

}  // namespace lockstep::comm
