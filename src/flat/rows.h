// Loops over elements that compute the parity of what they read and write.
//
// A parity (parity.h) is a chain of XORs; each waits for the one before. From a loop over elements
// a compiler makes a loop over registers with one chain. On a Neoverse-V1 an XOR takes two cycles,
// and a register is loaded in less time, so the chain limits the speed of the loop. Here a loop
// goes row by row instead. A row is a few registers that are all loaded before one is stored, and
// it has two chains. The body is written once, for rows and for the single elements after the last
// row:
//
//   for_each_row<T, true>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
//     const auto value = at.load(from);
//     seen.before(value);
//     at.store(out, value * factor);
//   });
//
// On x86-64 an XOR takes one cycle, as long as storing a register. So there are no rows there, and
// the compiler makes registers with the width of the level.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "flat/dispatch.h"
#include "flat/parity.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#define LOCKSTEP_HAS_ROWS
#endif

// LOCKSTEP_INLINE for a lambda.
#define LOCKSTEP_INLINE_BODY __attribute__((always_inline))

namespace lockstep::flat {

template <typename T>
using Bits = std::conditional_t<
    sizeof(T) == 8, std::uint64_t,
    std::conditional_t<sizeof(T) == 4, std::uint32_t,
                       std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;

// Where a body reads and writes: one element of every stretch.
struct ElementAt {
  std::size_t first;

  // Behind the last element of it.
  template <typename T>
  LOCKSTEP_INLINE std::size_t end() const {
    return first + 1;
  }

  template <typename T>
  LOCKSTEP_INLINE T load(const T* from) const {
    return from[first];
  }
  // The same for memory that is probably not in a cache, and that is read on from here.
  template <typename T>
  LOCKSTEP_INLINE T stream(const T* from) const {
    return from[first];
  }
  template <typename T>
  LOCKSTEP_INLINE void store(T* to, T value) const {
    to[first] = value;
  }
};

// The parities of what a body has seen. Without parity it does no work.
template <typename T, bool kWithParity>
class SeenElements {
 public:
  template <typename... Values>
  LOCKSTEP_INLINE void before(Values... values) {
    if constexpr (kWithParity) before_ ^= (std::bit_cast<Bits<T>>(values) ^ ...);
  }
  template <typename... Values>
  LOCKSTEP_INLINE void after(Values... values) {
    if constexpr (kWithParity) after_ ^= (std::bit_cast<Bits<T>>(values) ^ ...);
  }
  LOCKSTEP_INLINE Parities parities() const { return {before_, after_}; }

 private:
  Bits<T> before_ = 0;
  Bits<T> after_ = 0;
};

#if defined(LOCKSTEP_HAS_ROWS)
inline constexpr bool kHasRows = true;
inline constexpr std::size_t kRegisters = 4;  // of a row; together one cache line
inline constexpr std::size_t kChains = 2;

// How far ahead memory is fetched. The fastest of 512, 1,024 and 2,048 bytes for updates with
// momentum on a Neoverse-V1.
inline constexpr std::size_t kBytesAhead = 1024;

template <typename T>
struct Row {
  using Register __attribute__((vector_size(16))) = T;
  // Not std::memcpy: with it GCC 12 stores one register at a time, not two, and copies a whole row
  // through the stack.
  using InMemory __attribute__((vector_size(16), aligned(alignof(T)), may_alias)) = T;
  static constexpr std::size_t kElements = kRegisters * sizeof(Register) / sizeof(T);

  Register of[kRegisters];

  // A row with op(i) in register i.
  template <typename Op>
  LOCKSTEP_INLINE static Row each(const Op& op) {
    return {{op(0), op(1), op(2), op(3)}};
  }

  // The operations have the names of flat/element.h, too, so that a formula is written once for
  // elements and rows.
#define LOCKSTEP_ROW_OPERATOR(op, name)                                                        \
  LOCKSTEP_INLINE friend Row operator op(const Row& a, const Row& b) {                         \
    return each([&](std::size_t i)                                                             \
                    LOCKSTEP_INLINE_BODY -> Register { return a.of[i] op b.of[i]; });          \
  }                                                                                            \
  LOCKSTEP_INLINE friend Row operator op(const Row& a, T b) {                                  \
    return each([&](std::size_t i) LOCKSTEP_INLINE_BODY -> Register { return a.of[i] op b; }); \
  }                                                                                            \
  LOCKSTEP_INLINE friend Row operator op(T a, const Row& b) {                                  \
    return each([&](std::size_t i) LOCKSTEP_INLINE_BODY -> Register { return a op b.of[i]; }); \
  }                                                                                            \
  LOCKSTEP_INLINE friend Row name(const Row& a, const Row& b) {                                \
    return a op b;                                                                             \
  }                                                                                            \
  LOCKSTEP_INLINE friend Row name(const Row& a, T b) {                                         \
    return a op b;                                                                             \
  }                                                                                            \
  LOCKSTEP_INLINE friend Row name(T a, const Row& b) {                                         \
    return a op b;                                                                             \
  }
  LOCKSTEP_ROW_OPERATOR(+, add)
  LOCKSTEP_ROW_OPERATOR(-, subtract)
  LOCKSTEP_ROW_OPERATOR(*, multiply)
  LOCKSTEP_ROW_OPERATOR(/, divide)
#undef LOCKSTEP_ROW_OPERATOR
};

LOCKSTEP_INLINE Row<float> square_root(const Row<float>& row) {
  return Row<float>::each([&](std::size_t i)
                              LOCKSTEP_INLINE_BODY { return vsqrtq_f32(row.of[i]); });
}
LOCKSTEP_INLINE Row<double> square_root(const Row<double>& row) {
  return Row<double>::each([&](std::size_t i)
                               LOCKSTEP_INLINE_BODY { return vsqrtq_f64(row.of[i]); });
}
LOCKSTEP_INLINE Row<float> larger(const Row<float>& a, const Row<float>& b) {
  return Row<float>::each([&](std::size_t i) LOCKSTEP_INLINE_BODY {
    return vbslq_f32(vcgtq_f32(a.of[i], b.of[i]), a.of[i], b.of[i]);
  });
}
LOCKSTEP_INLINE Row<double> larger(const Row<double>& a, const Row<double>& b) {
  return Row<double>::each([&](std::size_t i) LOCKSTEP_INLINE_BODY {
    return vbslq_f64(vcgtq_f64(a.of[i], b.of[i]), a.of[i], b.of[i]);
  });
}

// Where a body reads and writes: one row of every stretch.
struct RowAt {
  std::size_t first;

  template <typename T>
  LOCKSTEP_INLINE std::size_t end() const {
    return first + Row<T>::kElements;
  }

  template <typename T>
  LOCKSTEP_INLINE Row<T> load(const T* from) const {
    using InMemory = typename Row<T>::InMemory;
    return Row<T>::each([&](std::size_t i) LOCKSTEP_INLINE_BODY -> typename Row<T>::Register {
      return *reinterpret_cast<const InMemory*>(place(from, i));
    });
  }
  template <typename T>
  LOCKSTEP_INLINE Row<T> stream(const T* from) const {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(from + first) + kBytesAhead);
    return load(from);
  }
  template <typename T>
  LOCKSTEP_INLINE void store(T* to, const Row<T>& row) const {
    using InMemory = typename Row<T>::InMemory;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kRegisters; ++i)
      *reinterpret_cast<InMemory*>(place(to, i)) = row.of[i];
  }

 private:
  template <typename T>
  LOCKSTEP_INLINE T* place(T* from, std::size_t i) const {
    return from + first + i * Row<std::remove_const_t<T>>::kElements / kRegisters;
  }
};

template <typename T, bool kWithParity>
class SeenRows {
 public:
  template <typename... Rows>
  LOCKSTEP_INLINE void before(const Rows&... rows) {
    if constexpr (kWithParity) add(before_, rows...);
  }
  template <typename... Rows>
  LOCKSTEP_INLINE void after(const Rows&... rows) {
    if constexpr (kWithParity) add(after_, rows...);
  }
  LOCKSTEP_INLINE Parities parities() const { return {folded(before_), folded(after_)}; }

 private:
  using Register = typename Row<Bits<T>>::Register;
  struct Chains {
    Register of[kChains] = {};
  };

  template <typename... Rows>
  LOCKSTEP_INLINE static void add(Chains& chains, const Rows&... rows) {
    const auto at = [&](std::size_t i) LOCKSTEP_INLINE_BODY {
      return (reinterpret_cast<Register>(rows.of[i]) ^ ...);
    };
    chains.of[0] = chains.of[0] ^ at(0) ^ at(2);
    chains.of[1] = chains.of[1] ^ at(1) ^ at(3);
  }
  LOCKSTEP_INLINE static Bits<T> folded(const Chains& chains) {
    const Register both = chains.of[0] ^ chains.of[1];
    Bits<T> all = 0;
    for (std::size_t i = 0; i < sizeof(both) / sizeof(T); ++i) all ^= both[i];
    return all;
  }

  Chains before_;
  Chains after_;
};
#else
inline constexpr bool kHasRows = false;
#endif

// Calls body(at, seen) until it had `count` elements. `at` loads and stores; the body tells `seen`
// what it has read and written. A stretch may be exactly another one, but may not overlap another
// one in any other way.
template <typename T, bool kWithParity, typename Body>
LOCKSTEP_INLINE Parities for_each_row(std::size_t count, const Body& body) {
  Parities seen;
  std::size_t first = 0;
#if defined(LOCKSTEP_HAS_ROWS)
  SeenRows<T, kWithParity> rows;
  for (; first + Row<T>::kElements <= count; first += Row<T>::kElements) body(RowAt{first}, rows);
  seen = rows.parities();
#endif
  SeenElements<T, kWithParity> rest;
  LOCKSTEP_VECTOR_LOOP
  for (std::size_t i = first; i < count; ++i) body(ElementAt{i}, rest);
  return {seen.before ^ rest.parities().before, seen.after ^ rest.parities().after};
}

}  // namespace lockstep::flat
