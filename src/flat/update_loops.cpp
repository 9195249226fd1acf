#include "flat/update_loops.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "flat/dispatch.h"
#include "flat/fold.h"
#include "flat/rows.h"
#include "flat/update_element.h"

namespace lockstep::flat {
namespace {

using element::Form;

// Elements of a type.
template <typename T>
struct Typed {
  T* parameter;
  const T* gradient;
  std::array<T*, kMostStates> state;
  std::size_t count;

  Typed part(std::size_t first, std::size_t most) const {
    Typed part{parameter + first, gradient + first, state, std::min(most, count - first)};
    for (T*& one : part.state) one = one == nullptr ? nullptr : one + first;
    return part;
  }
};

// Where they are kept. Without `elements` they are not.
template <typename T>
struct TypedKeeping {
  T* parameter = nullptr;
  std::array<T*, kMostStates> state{};
  std::atomic<std::uint64_t>* elements = nullptr;

  // Between what is kept and what changes. A process that is killed has made its stores in program order, so it is
  // enough that the compiler does not move them.
  LOCKSTEP_INLINE void count(std::size_t so_many) const {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    elements->store(so_many, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
};

// Where there are no rows, a strip of so many elements is kept before it is updated: a fence in a loop over elements
// would leave it without vectors.
constexpr std::size_t kKeptStrip = 256;

// SGD only adds and multiplies: it is faster if memory is fetched ahead.
template <typename Rule>
inline constexpr bool kStreams =
    std::is_same_v<typename Rule::template Numbers<float>, element::SgdNumbers<float>>;

// A state that the form does not use is a constant zero here, and changes no parity.
template <typename Rule, Form kForm, typename T, bool kWithParity>
struct Loop {
  using Numbers = typename Rule::template Numbers<T>;
  using States = std::make_index_sequence<Rule::kStates>;

  LOCKSTEP_INLINE static Parities run(Typed<T> on, Numbers of, TypedKeeping<T> keeping) {
    if (keeping.elements == nullptr) return over<false>(on, of, keeping);
    if constexpr (kHasRows) return over<true>(on, of, keeping);
    Parities seen;
    for (std::size_t first = 0; first < on.count; first += kKeptStrip) {
      const Typed<T> strip = on.part(first, kKeptStrip);
      keep_strip(strip, keeping, first, States());
      const Parities more = over<false>(strip, of, keeping);
      seen = {seen.before ^ more.before, seen.after ^ more.after};
    }
    return seen;
  }

 private:
  template <bool kKeeps>
  LOCKSTEP_INLINE static Parities over(Typed<T> on, Numbers of, TypedKeeping<T> keeping) {
    return for_each_row<T, kWithParity>(on.count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      update<kKeeps>(at, seen, on, of, keeping, States());
    });
  }
  template <bool kKeeps, typename At, typename Seen, std::size_t... kState>
  LOCKSTEP_INLINE static void update(At at, Seen& seen, const Typed<T>& on, const Numbers& of,
                                     const TypedKeeping<T>& keeping,
                                     std::index_sequence<kState...>) {
    auto parameter = load(at, on.parameter);
    using Values = decltype(parameter);
    Values held[std::max(Rule::kStates, 1)] = {
        (Rule::uses(kState, kForm) ? load(at, on.state[kState]) : Values{})...};
    if constexpr (kKeeps) {
      at.store(keeping.parameter, parameter);
      (store<kState>(at, keeping.state, held[kState]), ...);
      keeping.count(at.template end<T>());
    }
    seen.before(parameter, held[kState]...);
    Rule::apply(parameter, at.load(on.gradient), held, of, kForm);
    seen.after(parameter, held[kState]...);
    (store<kState>(at, on.state, held[kState]), ...);
    at.store(on.parameter, parameter);
  }
  template <std::size_t... kState>
  LOCKSTEP_INLINE static void keep_strip(const Typed<T>& strip, const TypedKeeping<T>& keeping,
                                         std::size_t first, std::index_sequence<kState...>) {
    copy(strip.parameter, keeping.parameter + first, strip.count);
    (copy_state<kState>(strip, keeping, first), ...);
    keeping.count(first + strip.count);
  }
  template <std::size_t kState>
  LOCKSTEP_INLINE static void copy_state(const Typed<T>& strip, const TypedKeeping<T>& keeping,
                                         std::size_t first) {
    if constexpr (Rule::uses(kState, kForm))
      copy(strip.state[kState], keeping.state[kState] + first, strip.count);
  }
  LOCKSTEP_INLINE static void copy(const T* from, T* to, std::size_t count) {
    for_each_row<T, false>(
        count, [=](auto at, auto&) LOCKSTEP_INLINE_BODY { at.store(to, at.load(from)); });
  }
  template <typename At>
  LOCKSTEP_INLINE static auto load(At at, const T* from) {
    if constexpr (kStreams<Rule>) {
      return at.stream(from);
    } else {
      return at.load(from);
    }
  }
  template <std::size_t kState, typename At, typename Values>
  LOCKSTEP_INLINE static void store(At at, const std::array<T*, kMostStates>& states,
                                    const Values& values) {
    if constexpr (Rule::uses(kState, kForm)) at.store(states[kState], values);
  }
};

// Calls `body` with the choices as compile-time constants, so that the loop does not test them for
// every row.
template <bool... kMade, typename Body>
Parities decided(const Body& body) {
  return body.template operator()<kMade...>();
}
template <bool... kMade, typename Body, typename... Rest>
Parities decided(const Body& body, bool next, Rest... rest) {
  return next ? decided<kMade..., true>(body, rest...) : decided<kMade..., false>(body, rest...);
}

// Runs one step with the loop for its form.
template <bool kWithParity, typename T>
class Chosen {
 public:
  explicit Chosen(const Typed<T>& on, const TypedKeeping<T>& keeping = {})
      : on_(on), keeping_(keeping) {}

  Parities operator()(const SgdStep& step) const {
    const auto of = element::in<T>(element::numbers_of(step));
    const Form form = element::form_of(of);
    if (step.momentum == 0) {
      return decided(
          [&]<bool kDecays>() { return run<element::PlainSgd, Form{.decays = kDecays}>(of); },
          form.decays);
    }
    return decided(
        [&]<bool kDecays, bool kFirst, bool kNesterov>() {
          constexpr Form kForm{.decays = kDecays, .first = kFirst, .nesterov = kNesterov};
          return run<element::MomentumSgd, kForm>(of);
        },
        form.decays, form.first, form.nesterov);
  }
  Parities operator()(const AdamStep& step) const {
    const auto of = element::in<T>(element::numbers_of(step));
    return decided(
        [&]<bool kDecays, bool kAmsgrad>() {
          using Rule = std::conditional_t<kAmsgrad, element::Amsgrad, element::Adam>;
          return run<Rule, Form{.decays = kDecays, .amsgrad = kAmsgrad}>(of);
        },
        element::form_of(of).decays, step.amsgrad);
  }
  Parities operator()(const RmsPropStep& step) const {
    const auto of = element::in<T>(element::numbers_of(step));
    const Form form = element::form_of(of);
    return decided(
        [&]<bool kDecays, bool kCentered, bool kMoves>() {
          constexpr Form kForm{.decays = kDecays, .centered = kCentered, .moves = kMoves};
          return run<element::RmsProp, kForm>(of);
        },
        form.decays, form.centered, form.moves);
  }
  Parities operator()(const AdagradStep& step) const {
    const auto of = element::in<T>(element::numbers_of(step));
    const Form form = element::form_of(of);
    return decided(
        [&]<bool kDecays, bool kFirst>() {
          return run<element::Adagrad, Form{.decays = kDecays, .first = kFirst}>(of);
        },
        form.decays, form.first);
  }
  Parities operator()(const LarsStep& step) const {
    const auto of = element::in<T>(element::numbers_of(step));
    const Form form = element::form_of(of);
    if (!form.moves) {
      return decided(
          [&]<bool kDecays>() { return run<element::Lars, Form{.decays = kDecays}>(of); },
          form.decays);
    }
    return decided(
        [&]<bool kDecays, bool kFirst, bool kNesterov>() {
          constexpr Form kForm{
              .decays = kDecays, .first = kFirst, .nesterov = kNesterov, .moves = true};
          return run<element::Lars, kForm>(of);
        },
        form.decays, form.first, form.nesterov);
  }
  Parities operator()(const LambStep& step) const {
    const auto of = element::in<T>(element::numbers_of(step));
    return decided([&]<bool kDecays>() { return run<element::Lamb, Form{.decays = kDecays}>(of); },
                   element::form_of(of).decays);
  }

 private:
  template <typename Rule, Form kForm>
  Parities run(const typename Rule::template Numbers<T>& of) const {
    return at_level<Loop<Rule, kForm, T, kWithParity>>(on_, of, keeping_);
  }

  Typed<T> on_;
  TypedKeeping<T> keeping_;
};

// A strip of half-type elements in float32: widened at first, and narrowed by store().
class Wide {
 public:
  Wide(DType dtype, const void* from, std::size_t first, std::size_t count)
      : dtype_(dtype), count_(count) {
    if (from == nullptr) return;
    place_ = static_cast<std::uint16_t*>(const_cast<void*>(from)) + first;
    widen(dtype, place_, values_.data(), count);
  }
  float* data() { return values_.data(); }
  void store() {
    if (place_ != nullptr) narrow(dtype_, values_.data(), place_, count_);
  }
  Parity parity() const { return place_ == nullptr ? 0 : flat::parity(dtype_, place_, count_); }

 private:
  DType dtype_;
  std::size_t count_;
  std::uint16_t* place_ = nullptr;  // null: nobody uses the values
  std::array<float, kStripElements> values_;
};

template <bool kWithParity, typename Step>
Parities update_half(const Elements& elements, const Step& step) {
  Parities seen;
  for (std::size_t first = 0; first < elements.count; first += kStripElements) {
    const std::size_t count = std::min(kStripElements, elements.count - first);
    const auto state = [&](std::size_t i) {
      return Wide(elements.dtype, step.uses(i) ? elements.state[i] : nullptr, first, count);
    };
    Wide gradient(elements.dtype, elements.gradient, first, count);
    Wide kept[] = {
        {elements.dtype, elements.parameter, first, count}, state(0), state(1), state(2)};
    static_assert(std::size(kept) == 1 + kMostStates);
    for (const Wide& one : kept) {
      if (kWithParity) seen.before ^= one.parity();
    }
    Chosen<false, float>(
        {kept[0].data(), gradient.data(), {kept[1].data(), kept[2].data(), kept[3].data()}, count})(
        step);
    for (Wide& one : kept) {
      one.store();
      if (kWithParity) seen.after ^= one.parity();
    }
  }
  return seen;
}

template <typename T>
Typed<T> typed(const Elements& elements) {
  Typed<T> on{static_cast<T*>(elements.parameter),
              static_cast<const T*>(elements.gradient),
              {},
              elements.count};
  for (std::size_t i = 0; i < kMostStates; ++i) on.state[i] = static_cast<T*>(elements.state[i]);
  return on;
}

template <typename T>
TypedKeeping<T> typed(const Keeping& keeping) {
  TypedKeeping<T> to{static_cast<T*>(keeping.parameter), {}, keeping.elements};
  for (std::size_t i = 0; i < kMostStates; ++i) to.state[i] = static_cast<T*>(keeping.state[i]);
  return to;
}

template <bool kWithParity, typename T, typename Step>
Parities update_typed(const Elements& elements, const Step& step) {
  const Keeping* const keeping = elements.keeping;
  return Chosen<kWithParity, T>(typed<T>(elements),
                                keeping == nullptr ? TypedKeeping<T>{} : typed<T>(*keeping))(step);
}

template <bool kWithParity, typename Step>
Parities update_any(const Elements& elements, const Step& step) {
  if (elements.dtype == DType::kFloat32) return update_typed<kWithParity, float>(elements, step);
  if (elements.dtype == DType::kFloat64) return update_typed<kWithParity, double>(elements, step);
  LOCKSTEP_CHECK(is_half(elements.dtype), "optimizers know floating-point types");
  LOCKSTEP_CHECK(elements.keeping == nullptr, "half types are kept by the caller");
  return update_half<kWithParity>(elements, step);
}

// LAMB's u of each element.
template <Form kForm, typename T>
struct Changes {
  LOCKSTEP_INLINE static void run(Typed<T> on, T* out, element::LambNumbers<T> of) {
    for_each_row<T, false>(on.count, [=](auto at, auto&) LOCKSTEP_INLINE_BODY {
      auto mean = at.load(on.state[0]);
      auto square = at.load(on.state[1]);
      at.store(out, element::lamb_change(at.load(on.parameter), at.load(on.gradient), mean, square,
                                         of, kForm));
    });
  }
};

template <typename T>
double squares_of_typed(const Typed<T>& on, const LambStep& step) {
  const auto of = element::in<T>(element::numbers_of(step));
  T changes[kStripElements];
  if (element::form_of(of).decays) {
    at_level<Changes<Form{.decays = true}, T>>(on, &changes[0], of);
  } else {
    at_level<Changes<Form{}, T>>(on, &changes[0], of);
  }
  return sum_of_squares(sizeof(T) == sizeof(double) ? DType::kFloat64 : DType::kFloat32, changes,
                        on.count);
}

template <typename T, bool kWithParity>
struct Average {
  LOCKSTEP_INLINE static Parities run(const T* parameter, T* average, std::size_t count, T fresh) {
    return for_each_row<T, kWithParity>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      const auto before = at.stream(average);
      seen.before(before);
      const auto after = element::averaged(before, at.load(parameter), fresh);
      seen.after(after);
      at.store(average, after);
    });
  }
};

template <bool kWithParity>
Parities average_any(const Averaged& elements, double decay) {
  const auto run = [&]<typename T>(T fresh) {
    return at_level<Average<T, kWithParity>>(static_cast<const T*>(elements.parameter),
                                             static_cast<T*>(elements.average), elements.count,
                                             fresh);
  };
  if (elements.dtype == DType::kFloat32) return run(static_cast<float>(1 - decay));
  LOCKSTEP_CHECK(elements.dtype == DType::kFloat64, "averages are float32 or float64");
  return run(1 - decay);
}

}  // namespace

void update(const Elements& elements, const SgdStep& step) {
  update_any<false>(elements, step);
}
void update(const Elements& elements, const AdamStep& step) {
  update_any<false>(elements, step);
}
void update(const Elements& elements, const RmsPropStep& step) {
  update_any<false>(elements, step);
}
void update(const Elements& elements, const AdagradStep& step) {
  update_any<false>(elements, step);
}
void update(const Elements& elements, const LarsStep& step) {
  update_any<false>(elements, step);
}
void update(const Elements& elements, const LambStep& step) {
  update_any<false>(elements, step);
}
Parities update_with_parity(const Elements& elements, const SgdStep& step) {
  return update_any<true>(elements, step);
}
Parities update_with_parity(const Elements& elements, const AdamStep& step) {
  return update_any<true>(elements, step);
}
Parities update_with_parity(const Elements& elements, const RmsPropStep& step) {
  return update_any<true>(elements, step);
}
Parities update_with_parity(const Elements& elements, const AdagradStep& step) {
  return update_any<true>(elements, step);
}
Parities update_with_parity(const Elements& elements, const LarsStep& step) {
  return update_any<true>(elements, step);
}
Parities update_with_parity(const Elements& elements, const LambStep& step) {
  return update_any<true>(elements, step);
}

double squares_of_change(const Elements& elements, const LambStep& step) {
  LOCKSTEP_CHECK(elements.count <= kStripElements, "squares are summed a strip at a time");
  if (elements.dtype == DType::kFloat32) return squares_of_typed(typed<float>(elements), step);
  if (elements.dtype == DType::kFloat64) return squares_of_typed(typed<double>(elements), step);
  LOCKSTEP_CHECK(is_half(elements.dtype), "optimizers know floating-point types");
  const auto wide = [&](const void* from) { return Wide(elements.dtype, from, 0, elements.count); };
  Wide kept[] = {wide(elements.parameter), wide(elements.gradient), wide(elements.state[0]),
                 wide(elements.state[1])};
  return squares_of_typed<float>(
      {kept[0].data(), kept[1].data(), {kept[2].data(), kept[3].data(), nullptr}, elements.count},
      step);
}

void average(const Averaged& elements, double decay) {
  average_any<false>(elements, decay);
}
Parities average_with_parity(const Averaged& elements, double decay) {
  return average_any<true>(elements, decay);
}

}  // namespace lockstep::flat
