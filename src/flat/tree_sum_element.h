// The arithmetic of a sum on a device, element by element. The device's compiler and, in the tests,
// the host's compile the same text. It gives the bits of flat/tree_sum.cpp for finite values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "flat/element.h"
#include "flat/tree_program.h"

namespace lockstep::flat::element {

// The arguments of a kernel. They are copied with every launch, so there is a short form for the
// usual few operands.
inline constexpr std::size_t kFewOperands = 16;
template <std::size_t kMost>
struct SumArguments {
  const void* operands[kMost];
  std::uint8_t adds[kMost];
  void* out;
  std::size_t count;
  double factor;
  std::int32_t operand_count;
  std::int32_t scaled;  // the factor is not 1
};
static_assert(sizeof(SumArguments<kMostOperands>) <= 4096);

// The number of additions after operand i in the tree over n operands, if each worker has one.
LOCKSTEP_DEVICE constexpr int adds_after(int i, int n) {
  int adds = 0;
  if (i + 1 < n) {
    while (((i + 1) >> adds) % 2 == 0) ++adds;
    return adds;
  }
  for (int rest = n - 1; rest > 0; rest &= rest - 1) ++adds;
  return adds;
}

struct Add {
  template <typename T>
  LOCKSTEP_DEVICE static T of(T a, T b) {
    return add(a, b);
  }
};
struct Least {
  template <typename T>
  LOCKSTEP_DEVICE static T of(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};
struct Most {
  template <typename T>
  LOCKSTEP_DEVICE static T of(T a, T b) {
    return (b > a || b != b) ? b : a;
  }
};

// kOperands: the number of operands, if each worker has one. The compiler knows it and keeps all
// sums in registers. 0: any program.
template <typename T, typename Op, int kOperands, int kWidth, typename Arguments>
LOCKSTEP_DEVICE void sum_pack(const Arguments& arguments, std::size_t index) {
  using Packed = Pack<T, kWidth>;
  using Sum = typename Stored<T>::Sum;
  constexpr int kSums = kOperands > 0 ? kOperands : kMostWaiting;
  Sum sums[kSums][kWidth];
  int top = 0;
  const int operands = kOperands > 0 ? kOperands : arguments.operand_count;
#if LOCKSTEP_ON_DEVICE
#pragma unroll
#endif
  for (int i = 0; i < operands; ++i) {
    const Packed pack = static_cast<const Packed*>(arguments.operands[i])[index];
    for (int k = 0; k < kWidth; ++k) sums[top][k] = Stored<T>::load(pack.at[k]);
    ++top;
    const int adds = kOperands > 0 ? adds_after(i, kOperands) : arguments.adds[i];
#if LOCKSTEP_ON_DEVICE
#pragma unroll
#endif
    for (int add = 0; add < adds; ++add) {
      --top;
      for (int k = 0; k < kWidth; ++k) sums[top - 1][k] = Op::of(sums[top - 1][k], sums[top][k]);
    }
  }
  Packed result;
  for (int k = 0; k < kWidth; ++k) {
    Sum sum = sums[0][k];
    if constexpr (std::is_floating_point_v<Sum>) {
      if (arguments.scaled != 0) sum = multiply(sum, static_cast<Sum>(arguments.factor));
    }
    result.at[k] = Stored<T>::store(sum);
  }
  static_cast<Packed*>(arguments.out)[index] = result;
}

// One of the last elements, which do not fill a pack.
template <typename T, typename Op, int kOperands, typename Arguments>
LOCKSTEP_DEVICE void sum_one(const Arguments& arguments, std::size_t index) {
  sum_pack<T, Op, kOperands, 1>(arguments, index);
}

// Calls with<T, Op, operands known to the compiler, elements of a pack>() for a task. Packs of 16
// bytes and known numbers of operands exist only for sums of floating-point types, because other
// reductions are rare and every kernel takes time to compile.
template <typename T, typename With>
void choose_op(ReduceOp op, int known, bool packed, const With& with) {
  constexpr int kWidth = 16 / sizeof(T);
  if (op == ReduceOp::kMin) return with.template operator()<T, Least, 0, 1>();
  if (op == ReduceOp::kMax) return with.template operator()<T, Most, 0, 1>();
  if constexpr (!std::is_integral_v<T>) {
    if (packed && known == 1) return with.template operator()<T, Add, 1, kWidth>();
    if (packed && known == 2) return with.template operator()<T, Add, 2, kWidth>();
    if (packed && known == 3) return with.template operator()<T, Add, 3, kWidth>();
    if (packed && known == 4) return with.template operator()<T, Add, 4, kWidth>();
    if (packed && known == 8) return with.template operator()<T, Add, 8, kWidth>();
    if (packed) return with.template operator()<T, Add, 0, kWidth>();
  }
  return with.template operator()<T, Add, 0, 1>();
}

template <typename With>
void choose(const Fold& fold, int known, bool packed, const With& with) {
  switch (fold.dtype) {
    case DType::kFloat32:
      return choose_op<float>(fold.op, known, packed, with);
    case DType::kFloat64:
      return choose_op<double>(fold.op, known, packed, with);
    case DType::kFloat16:
      return choose_op<Float16>(fold.op, known, packed, with);
    case DType::kBFloat16:
      return choose_op<BFloat16>(fold.op, known, packed, with);
    case DType::kInt32:
      return choose_op<std::int32_t>(fold.op, known, packed, with);
    case DType::kInt64:
      return choose_op<std::int64_t>(fold.op, known, packed, with);
    case DType::kUInt8:
      break;
  }
  return choose_op<std::uint8_t>(fold.op, known, packed, with);
}

template <std::size_t kMost>
SumArguments<kMost> arguments_of(const SumTask& task) {
  SumArguments<kMost> arguments;
  for (std::size_t i = 0; i < task.operands.size(); ++i) {
    arguments.operands[i] = task.operands[i];
    arguments.adds[i] = task.adds[i];
  }
  arguments.out = task.out;
  arguments.count = task.count;
  arguments.factor = task.fold.factor;
  arguments.operand_count = static_cast<std::int32_t>(task.operands.size());
  arguments.scaled = task.fold.factor != 1 ? 1 : 0;
  return arguments;
}

// The number of operands, if each worker has one; else 0.
inline int known_operands(const SumTask& task) {
  const int n = static_cast<int>(task.operands.size());
  for (int i = 0; i < n; ++i) {
    if (task.adds[static_cast<std::size_t>(i)] != adds_after(i, n)) return 0;
  }
  return n;
}

inline bool all_aligned(const SumTask& task, std::size_t bytes) {
  const auto aligned = [&](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
  };
  for (const void* operand : task.operands) {
    if (!aligned(operand)) return false;
  }
  return aligned(task.out);
}

}  // namespace lockstep::flat::element
