// What one thread of a device does with a chunk. The device's compiler and, in the tests, the
// host's compile the same text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "flat/device_update.h"

#if LOCKSTEP_ON_DEVICE
#define LOCKSTEP_UNROLL _Pragma("unroll")
#else
#define LOCKSTEP_UNROLL
#endif

namespace lockstep::flat::element {

// The type of each value. Kept: the type of what is updated (parameters or masters) and of its
// states.
template <typename ParameterType, typename GradientType, bool kMastersThere>
struct Types {
  using Parameter = ParameterType;
  using Gradient = GradientType;
  static constexpr bool kMasters = kMastersThere;
  using Kept = std::conditional_t<kMasters, float, Parameter>;
  using Real = typename Stored<Kept>::Sum;
  static constexpr bool kWideGradient = !std::is_same_v<Parameter, Gradient>;
  using Word = std::conditional_t<sizeof(Kept) == 8, std::uint64_t, std::uint32_t>;  // of a parity
  // Elements that a thread moves at a time: 16 bytes of the widest.
  static constexpr int kWidth =
      16 / static_cast<int>(sizeof(Kept) > sizeof(Gradient) ? sizeof(Kept) : sizeof(Gradient));
  static constexpr bool kAveraged = std::is_floating_point_v<Kept>;
};

// A value as it is after storing and loading it.
template <typename Kept, typename Real>
LOCKSTEP_DEVICE Real rounded(Real value) {
  return Stored<Kept>::load(Stored<Kept>::store(value));
}

// A gradient in the kept type.
template <typename Of>
LOCKSTEP_DEVICE typename Of::Real kept_gradient(typename Of::Gradient gradient) {
  const auto value = Stored<typename Of::Gradient>::load(gradient);
  if constexpr (sizeof(typename Of::Gradient) > sizeof(typename Of::Kept))
    return rounded<typename Of::Kept>(value);
  else
    return value;
}

// A limit in the type of what it limits: the kept type if there is a factor other than 1, else the
// type of the gradient. Below 0: none.
template <typename Of>
LOCKSTEP_DEVICE typename Of::Real limit_in(double most, bool scaled) {
  using Gradient = typename Of::Gradient;
  if (most == 0) return -1;
  const auto limit = static_cast<typename Of::Real>(most);
  if constexpr (sizeof(Gradient) < sizeof(typename Of::Kept)) {
    if (!scaled) return rounded<Gradient>(limit);
  }
  return rounded<typename Of::Kept>(limit);
}

// Where a chunk begins in a flat memory.
template <typename T>
LOCKSTEP_DEVICE T* flat_at(void* flat, const EntryOffsets& place, const Chunk& chunk, bool wide) {
  auto* const entry = static_cast<std::byte*>(flat) + (wide ? place.wide_offset : place.offset);
  return reinterpret_cast<T*>(entry) + std::size_t{chunk.block} * plan::kBlockElements;
}

// Where the gradients of a chunk begin; null means zeros.
template <typename Of>
LOCKSTEP_DEVICE const typename Of::Gradient* gradient_at(const DeviceGradients& gradients,
                                                         const EntryOffsets& place,
                                                         const Chunk& chunk) {
  using Gradient = typename Of::Gradient;
  if (gradients.entries == nullptr)
    return flat_at<Gradient>(const_cast<void*>(gradients.flat), place, chunk, Of::kWideGradient);
  const auto* const entry = static_cast<const Gradient*>(gradients.entries[chunk.entry]);
  if (entry == nullptr) return nullptr;
  return entry + std::size_t{chunk.block} * plan::kBlockElements;
}

LOCKSTEP_DEVICE bool aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

template <int kWidth, typename T>
LOCKSTEP_DEVICE Pack<T, kWidth> load_pack(const T* from, std::uint32_t index) {
  return reinterpret_cast<const Pack<T, kWidth>*>(from)[index];
}
#if LOCKSTEP_ON_DEVICE
// A type of so many bytes that the device loads with one instruction.
template <std::size_t kBytes>
struct Loaded;
template <>
struct Loaded<16> {
  using Type = uint4;
};
template <>
struct Loaded<8> {
  using Type = uint2;
};
template <>
struct Loaded<4> {
  using Type = unsigned int;
};
template <>
struct Loaded<2> {
  using Type = unsigned short;
};
#endif
// load_pack for memory that no kernel writes at this time. The compiler cannot know this, so it is
// said with __ldg.
template <int kWidth, typename T>
LOCKSTEP_DEVICE Pack<T, kWidth> load_constant_pack(const T* from, std::uint32_t index) {
#if LOCKSTEP_ON_DEVICE
  const auto loaded =
      __ldg(reinterpret_cast<const typename Loaded<sizeof(T) * kWidth>::Type*>(from) + index);
  Pack<T, kWidth> pack;
  memcpy(&pack, &loaded, sizeof(pack));
  return pack;
#else
  return load_pack<kWidth>(from, index);
#endif
}
template <int kWidth, typename T>
LOCKSTEP_DEVICE void store_pack(const Pack<T, kWidth>& pack, T* to, std::uint32_t index) {
  reinterpret_cast<Pack<T, kWidth>*>(to)[index] = pack;
}
// load_pack and store_pack for memory that is not used again before the next update: it leaves the
// caches first.
template <int kWidth, typename T>
LOCKSTEP_DEVICE Pack<T, kWidth> load_passing_pack(const T* from, std::uint32_t index) {
#if LOCKSTEP_ON_DEVICE
  const auto loaded =
      __ldcs(reinterpret_cast<const typename Loaded<sizeof(T) * kWidth>::Type*>(from) + index);
  Pack<T, kWidth> pack;
  memcpy(&pack, &loaded, sizeof(pack));
  return pack;
#else
  return load_pack<kWidth>(from, index);
#endif
}
template <int kWidth, typename T>
LOCKSTEP_DEVICE void store_passing_pack(const Pack<T, kWidth>& pack, T* to, std::uint32_t index) {
#if LOCKSTEP_ON_DEVICE
  typename Loaded<sizeof(T) * kWidth>::Type stored;
  memcpy(&stored, &pack, sizeof(pack));
  __stcs(reinterpret_cast<decltype(stored)*>(to) + index, stored);
#else
  store_pack<kWidth>(pack, to, index);
#endif
}

// The parities of what a thread has read and written. A word has as many bits as the widest value.
template <typename Word>
struct Seen {
  Word before = 0;
  Word after = 0;
  Word applied = 0;
};

// Where a chunk is in every memory, and how gradients become what is applied.
template <typename Of>
struct Parts {
  typename Of::Parameter* parameter;
  typename Of::Kept* kept;
  typename Of::Kept* states[kMostStates];
  const typename Of::Gradient* gradient;
  bool loose;  // the gradient was left where backward made it: use 0 + g
  bool scaled;
  typename Of::Real factor;
  typename Of::Real limit;     // below 0: none
  typename Of::Kept* average;  // null: none
  typename Of::Real fresh;

  LOCKSTEP_DEVICE static Parts of(const UpdateTask& task, const EntryOffsets& place,
                                  const Chunk& chunk) {
    using Kept = typename Of::Kept;
    Parts parts;
    parts.parameter = flat_at<typename Of::Parameter>(task.parameters, place, chunk, false);
    if constexpr (Of::kMasters) {
      parts.kept = flat_at<Kept>(task.masters, place, chunk, true);
    } else {
      parts.kept = parts.parameter;
    }
    for (std::size_t i = 0; i < kMostStates; ++i) {
      parts.states[i] = nullptr;
      if (task.states[i] != nullptr)
        parts.states[i] = flat_at<Kept>(task.states[i], place, chunk, task.wide_states);
    }
    parts.gradient = gradient_at<Of>(task.gradients, place, chunk);
    parts.loose = task.gradients.entries != nullptr;
    const double factor = task.factor != nullptr ? *task.factor : 1.0;
    parts.scaled = factor != 1;
    parts.factor = static_cast<typename Of::Real>(factor);
    parts.limit = limit_in<Of>(task.limit, parts.scaled);
    parts.average = nullptr;
    if (Of::kAveraged && task.average != nullptr)
      parts.average = flat_at<Kept>(task.average, place, chunk, task.wide_states);
    parts.fresh = static_cast<typename Of::Real>(task.fresh);
    return parts;
  }

  // A gradient as it is applied.
  LOCKSTEP_DEVICE typename Of::Real applied(typename Of::Gradient given) const {
    using Real = typename Of::Real;
    Real g = kept_gradient<Of>(given);
    if (loose) g = add(Real{0}, g);
    if (scaled) g = rounded<typename Of::Kept>(multiply(g, factor));
    return limit < 0 ? g : limited(g, limit);
  }
};

// How an update uses the caches. Of everything that it touches, only parameters are needed soon, by
// the next forward pass. If the caches can hold a good part of them, and of the gradients that
// backward has just made, kPassing keeps everything else out of the caches.
enum class Caching : std::uint8_t { kPlain, kPassing };

// Some neighbouring elements in registers: load them, update them, store them. A state that is not
// used is zero here, and changes no parity.
template <typename Of, typename Rule, int kWidth, bool kWithParity, Caching kCaching>
struct Held {
  using Kept = typename Of::Kept;
  using Real = typename Of::Real;
  using Word = typename Of::Word;
  static constexpr int kStates = Rule::kStates > 0 ? Rule::kStates : 1;
  static constexpr bool kPasses = kCaching == Caching::kPassing;

  Pack<Kept, kWidth> kept;
  Pack<Kept, kWidth> states[kStates];
  Pack<typename Of::Gradient, kWidth> gradient;
  Pack<typename Of::Parameter, kWidth> parameter;  // only with masters

  LOCKSTEP_DEVICE void load(const Parts<Of>& parts, Form form, std::uint32_t index) {
    if constexpr (kWidth == 1) gradient = {};
    if (kWidth > 1 || parts.gradient != nullptr)
      gradient = kPasses ? load_passing_pack<kWidth>(parts.gradient, index)
                         : load_constant_pack<kWidth>(parts.gradient, index);
    kept = load_pack<kWidth>(parts.kept, index);
    LOCKSTEP_UNROLL
    for (int i = 0; i < Rule::kStates; ++i) {
      if (!Rule::uses(i, form)) {
        states[i] = {};
        continue;
      }
      states[i] = kPasses ? load_passing_pack<kWidth>(parts.states[i], index)
                          : load_pack<kWidth>(parts.states[i], index);
    }
    if constexpr (Of::kMasters && kWithParity)
      parameter = load_pack<kWidth>(parts.parameter, index);
  }

  template <typename Numbers>
  LOCKSTEP_DEVICE void update(const Parts<Of>& parts, const Numbers& of, Form form,
                              Seen<Word>& seen) {
    LOCKSTEP_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      Real value = Stored<Kept>::load(kept.at[k]);
      Real held[kStates] = {};
      if (kWithParity) seen.before ^= bits(k);
      LOCKSTEP_UNROLL
      for (int i = 0; i < Rule::kStates; ++i) held[i] = Stored<Kept>::load(states[i].at[k]);
      const Real g = parts.applied(gradient.at[k]);
      if (kWithParity) seen.applied ^= bits_of(Stored<Kept>::store(g));
      Rule::apply(value, g, held, of, form);
      kept.at[k] = Stored<Kept>::store(value);
      if constexpr (Of::kMasters)
        parameter.at[k] = Stored<typename Of::Parameter>::store(kept.at[k]);
      LOCKSTEP_UNROLL
      for (int i = 0; i < Rule::kStates; ++i) states[i].at[k] = Stored<Kept>::store(held[i]);
      if (kWithParity) seen.after ^= bits(k);
    }
  }

  LOCKSTEP_DEVICE void store(const Parts<Of>& parts, Form form, std::uint32_t index) const {
    store_pack<kWidth>(kept, parts.kept, index);
    LOCKSTEP_UNROLL
    for (int i = 0; i < Rule::kStates; ++i) {
      if (!Rule::uses(i, form)) continue;
      if constexpr (kPasses) {
        store_passing_pack<kWidth>(states[i], parts.states[i], index);
      } else {
        store_pack<kWidth>(states[i], parts.states[i], index);
      }
    }
    if constexpr (Of::kMasters) store_pack<kWidth>(parameter, parts.parameter, index);
  }

  // The average takes up the new values. It is loaded here, when most registers are free again.
  LOCKSTEP_DEVICE void average(const Parts<Of>& parts, std::uint32_t index,
                               Seen<Word>& seen) const {
    if constexpr (Of::kAveraged) {
      if (parts.average == nullptr) return;
      auto averages = load_pack<kWidth>(parts.average, index);
      LOCKSTEP_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        if (kWithParity) seen.before ^= bits_of(averages.at[k]);
        averages.at[k] = averaged(averages.at[k], kept.at[k], parts.fresh);
        if (kWithParity) seen.after ^= bits_of(averages.at[k]);
      }
      store_pack<kWidth>(averages, parts.average, index);
    }
  }

 private:
  // The XOR over one element: its kept value, its states and, with masters, its parameter.
  LOCKSTEP_DEVICE Word bits(int k) const {
    Word all = bits_of(kept.at[k]);
    LOCKSTEP_UNROLL
    for (int i = 0; i < Rule::kStates; ++i) all ^= bits_of(states[i].at[k]);
    if constexpr (Of::kMasters) all ^= bits_of(parameter.at[k]);
    return all;
  }
};

// A thread: its index, and the number of threads of its block.
struct Thread {
  std::uint32_t index;
  std::uint32_t of;
};

// Updates packs begin … end−1 of a chunk. Two packs are in flight at a time, if there are enough
// registers.
template <typename Of, typename Rule, int kWidth, bool kWithParity, Caching kCaching,
          typename Numbers>
LOCKSTEP_DEVICE void update_packs(const Parts<Of>& parts, const Numbers& numbers,
                                  std::uint32_t begin, std::uint32_t end, Thread thread,
                                  Seen<typename Of::Word>& seen) {
  constexpr std::uint32_t kAhead = kWidth > 4 ? 1 : 2;
  const Form form = form_of(numbers);
  for (std::uint32_t i = begin + thread.index; i < end; i += kAhead * thread.of) {
    Held<Of, Rule, kWidth, kWithParity, kCaching> held[kAhead];
    LOCKSTEP_UNROLL
    for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
      if (i + ahead * thread.of < end) held[ahead].load(parts, form, i + ahead * thread.of);
    }
    LOCKSTEP_UNROLL
    for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
      if (i + ahead * thread.of >= end) continue;
      held[ahead].update(parts, numbers, form, seen);
      held[ahead].store(parts, form, i + ahead * thread.of);
      held[ahead].average(parts, i + ahead * thread.of, seen);
    }
  }
}

template <typename Of, typename Rule, bool kWithParity, Caching kCaching, typename Numbers>
LOCKSTEP_DEVICE void update_parts(const Parts<Of>& parts, const Numbers& numbers,
                                  std::uint32_t count, Thread thread,
                                  Seen<typename Of::Word>& seen) {
  constexpr int kWidth = Of::kWidth;
  // A parameter without a gradient is rare. It goes the slow way, so that the fast loop needs no
  // branch.
  const bool packed =
      parts.gradient != nullptr && aligned(parts.gradient, kWidth * sizeof(typename Of::Gradient));
  const std::uint32_t packs = packed ? count / kWidth : 0;
  update_packs<Of, Rule, kWidth, kWithParity, kCaching>(parts, numbers, 0, packs, thread, seen);
  update_packs<Of, Rule, 1, kWithParity, kCaching>(parts, numbers, packs * kWidth, count, thread,
                                                   seen);
}

// SGD, with or without momentum: groups of one optimizer may differ in that.
struct Sgd : MomentumSgd {};

// The numbers of a chunk's rule, with the trust in its parameter.
template <typename Numbers>
LOCKSTEP_DEVICE Numbers numbers_for(const UpdateTask& task, const Chunk& chunk) {
  const void* const all =
      task.numbers != nullptr ? task.numbers : static_cast<const void*>(task.few);
  const auto& numbers = static_cast<const Numbers*>(all)[chunk.rule];
  if constexpr (requires { trusted(numbers, 1.0); }) {
    return task.trusts == nullptr ? numbers : trusted(numbers, task.trusts[chunk.entry]);
  } else {
    return numbers;
  }
}

template <typename Of, typename Rule, bool kWithParity, Caching kCaching = Caching::kPlain>
LOCKSTEP_DEVICE Seen<typename Of::Word> update_chunk(const UpdateTask& task, const Chunk& chunk,
                                                     Thread thread) {
  using Real = typename Of::Real;
  using Numbers = typename Rule::template Numbers<double>;
  const EntryOffsets place = task.range.tables.places[chunk.entry];
  const auto parts = Parts<Of>::of(task, place, chunk);
  Seen<typename Of::Word> seen;
  const auto numbers = numbers_for<Numbers>(task, chunk);
  if constexpr (std::is_same_v<Rule, Sgd>) {
    if (numbers.momentum == 0) {
      update_parts<Of, PlainSgd, kWithParity, kCaching>(parts, in<Real>(numbers), chunk.count,
                                                        thread, seen);
      return seen;
    }
  }
  update_parts<Of, Rule, kWithParity, kCaching>(parts, in<Real>(numbers), chunk.count, thread,
                                                seen);
  return seen;
}

// Calls with<Rule>() for the rule of a task.
template <typename With>
void choose_rule(const UpdateTask& task, const With& with) {
  switch (task.rule) {
    case UpdateRule::kSgd:
      return with.template operator()<Sgd>();
    case UpdateRule::kAdam:
      if (task.states[2] != nullptr) return with.template operator()<Amsgrad>();
      return with.template operator()<Adam>();
    case UpdateRule::kRmsProp:
      return with.template operator()<RmsProp>();
    case UpdateRule::kAdagrad:
      return with.template operator()<Adagrad>();
    case UpdateRule::kLars:
      return with.template operator()<Lars>();
    case UpdateRule::kLamb:
      return with.template operator()<Lamb>();
  }
}

// flat = 0 + gradient, or flat = flat + gradient. Four packs are in flight at a time.
template <typename From, typename Flat, int kWidth>
LOCKSTEP_DEVICE void gather_packs(const From* from, Flat* flat, bool adds, std::uint32_t begin,
                                  std::uint32_t end, Thread thread) {
  using Sum = typename Stored<Flat>::Sum;
  constexpr std::uint32_t kAhead = 4;
  for (std::uint32_t i = begin + thread.index; i < end; i += kAhead * thread.of) {
    Pack<From, kWidth> given[kAhead] = {};
    Pack<Flat, kWidth> there[kAhead] = {};
    LOCKSTEP_UNROLL
    for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
      const std::uint32_t at = i + ahead * thread.of;
      if (at < end && from != nullptr) given[ahead] = load_constant_pack<kWidth>(from, at);
      if (at < end && adds) there[ahead] = load_pack<kWidth>(flat, at);
    }
    LOCKSTEP_UNROLL
    for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
      LOCKSTEP_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        const Sum sum = add(Stored<Flat>::load(there[ahead].at[k]),
                            static_cast<Sum>(Stored<From>::load(given[ahead].at[k])));
        there[ahead].at[k] = Stored<Flat>::store(sum);
      }
      if (i + ahead * thread.of < end) store_pack(there[ahead], flat, i + ahead * thread.of);
    }
  }
}

template <typename From, typename Flat>
LOCKSTEP_DEVICE void gather_all(const From* from, Flat* flat, bool adds, std::uint32_t count,
                                Thread thread) {
  constexpr int kWidth = 16 / sizeof(Flat);
  const bool packed = aligned(from, kWidth * sizeof(From)) && aligned(flat, 16);
  const std::uint32_t packs = packed ? count / kWidth : 0;
  gather_packs<From, Flat, kWidth>(from, flat, adds, 0, packs, thread);
  gather_packs<From, Flat, 1>(from, flat, adds, packs * kWidth, count, thread);
}

template <typename From, typename Flat>
LOCKSTEP_DEVICE void gather_chunk(const GatherTask& task, const Chunk& chunk, Thread thread) {
  const auto* from = static_cast<const From*>(task.entries[chunk.entry]);
  if (from == nullptr && task.adds) return;
  if (reinterpret_cast<std::uintptr_t>(from) == kLeftAlone) return;
  if (from != nullptr) from += std::size_t{chunk.block} * plan::kBlockElements;
  Flat* const flat =
      flat_at<Flat>(task.flat, task.range.tables.places[chunk.entry], chunk, task.wide);
  gather_all(from, flat, task.adds, chunk.count, thread);
}

// Calls with<Types>() for the types of a range. Other types are a bug of the caller.
template <typename Half, typename With>
void choose_half(DType gradient, bool masters, const With& with) {
  const bool wide = gradient == DType::kFloat32;
  if (masters && wide) return with.template operator()<Types<Half, float, true>>();
  if (masters) return with.template operator()<Types<Half, Half, true>>();
  if (wide) return with.template operator()<Types<Half, float, false>>();
  return with.template operator()<Types<Half, Half, false>>();
}
template <typename With>
void choose_types(DType dtype, DType gradient, bool masters, const With& with) {
  const bool half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  LOCKSTEP_CHECK(gradient == dtype || (half && gradient == DType::kFloat32),
                 "gradients have the type of their parameters, or float32 for half types");
  LOCKSTEP_CHECK(half || !masters, "only half types have masters");
  if (dtype == DType::kFloat16) return choose_half<element::Float16>(gradient, masters, with);
  if (dtype == DType::kBFloat16) return choose_half<element::BFloat16>(gradient, masters, with);
  if (dtype == DType::kFloat64) return with.template operator()<Types<double, double, false>>();
  LOCKSTEP_CHECK(dtype == DType::kFloat32, "optimizers know floating-point types");
  return with.template operator()<Types<float, float, false>>();
}

// Calls with<From, Flat>() for the types of a gather task.
template <typename With>
void choose_gather(DType from, DType flat, const With& with) {
  using element::BFloat16, element::Float16;
  const bool wide = from != flat;
  LOCKSTEP_CHECK(!wide || flat == DType::kFloat32, "wide sums of half types are float32");
  if (from == DType::kFloat16 && wide) return with.template operator()<Float16, float>();
  if (from == DType::kBFloat16 && wide) return with.template operator()<BFloat16, float>();
  LOCKSTEP_CHECK(!wide, "only half types have wide sums");
  if (from == DType::kFloat16) return with.template operator()<Float16, Float16>();
  if (from == DType::kBFloat16) return with.template operator()<BFloat16, BFloat16>();
  if (from == DType::kFloat64) return with.template operator()<double, double>();
  LOCKSTEP_CHECK(from == DType::kFloat32, "optimizers know floating-point types");
  return with.template operator()<float, float>();
}

}  // namespace lockstep::flat::element
