#include "flat/update_loops.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/check.h"
#include "flat/dispatch.h"
#include "flat/fold.h"
#include "flat/rows.h"
#include "flat/update_element.h"

namespace lockstep::flat {
namespace {

using element::AdamNumbers;
using element::Form;
using element::SgdNumbers;

// Calls `body` with a compile-time constant, so that the loop does not test it for every row.
template <typename Body>
Parities decided(bool choice, const Body& body) {
  return choice ? body(std::true_type()) : body(std::false_type());
}

template <typename T, bool kDecays, bool kWithParity>
struct PlainSgd {
  static constexpr Form kForm{.decays = kDecays};
  LOCKSTEP_INLINE static Parities run(T* p, const T* g, std::size_t count, SgdNumbers<T> of) {
    return for_each_row<T, kWithParity>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      auto parameter = at.stream(p);
      seen.before(parameter);
      element::sgd(parameter, at.load(g), of, kForm);
      seen.after(parameter);
      at.store(p, parameter);
    });
  }
};

template <typename T, bool kDecays, bool kFirst, bool kNesterov, bool kWithParity>
struct MomentumSgd {
  static constexpr Form kForm{.decays = kDecays, .first = kFirst, .nesterov = kNesterov};
  LOCKSTEP_INLINE static Parities run(T* p, const T* g, T* b, std::size_t count, SgdNumbers<T> of) {
    return for_each_row<T, kWithParity>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      auto parameter = at.stream(p);
      auto velocity = at.stream(b);
      seen.before(parameter, velocity);
      element::sgd(parameter, at.load(g), velocity, of, kForm);
      seen.after(parameter, velocity);
      at.store(b, velocity);
      at.store(p, parameter);
    });
  }
};

template <bool kWithParity, typename T>
Parities sgd_typed(T* p, const T* g, T* b, std::size_t count, const SgdStep& step) {
  const auto of = element::in<T>(element::numbers_of(step));
  const Form form = element::form_of(of);
  return decided(form.decays, [&](auto decays) {
    constexpr bool kDecays = decltype(decays)::value;
    if (step.momentum == 0) return at_level<PlainSgd<T, kDecays, kWithParity>>(p, g, count, of);
    return decided(form.first, [&](auto first) {
      return decided(form.nesterov, [&](auto nesterov) {
        using Loop =
            MomentumSgd<T, kDecays, decltype(first)::value, decltype(nesterov)::value, kWithParity>;
        return at_level<Loop>(p, g, b, count, of);
      });
    });
  });
}

template <typename T, bool kDecays, bool kWithParity>
struct AdamLoop {
  static constexpr Form kForm{.decays = kDecays};
  LOCKSTEP_INLINE static Parities run(T* p, const T* g, T* m, T* v, std::size_t count,
                                      AdamNumbers<T> of) {
    return for_each_row<T, kWithParity>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      auto parameter = at.load(p);
      auto mean = at.load(m);
      auto square = at.load(v);
      seen.before(parameter, mean, square);
      element::adam(parameter, at.load(g), mean, square, of, kForm);
      seen.after(parameter, mean, square);
      at.store(m, mean);
      at.store(v, square);
      at.store(p, parameter);
    });
  }
};

template <bool kWithParity, typename T>
Parities adam_typed(T* p, const T* g, T* m, T* v, std::size_t count, const AdamStep& step) {
  const auto of = element::in<T>(element::numbers_of(step));
  return decided(element::form_of(of).decays, [&](auto decays) {
    return at_level<AdamLoop<T, decltype(decays)::value, kWithParity>>(p, g, m, v, count, of);
  });
}

// A strip of half-type elements in float32: widened at first, and narrowed by store().
class Wide {
 public:
  Wide(DType dtype, void* from, std::size_t first, std::size_t count)
      : dtype_(dtype), count_(count) {
    if (from == nullptr) return;
    place_ = static_cast<std::uint16_t*>(from) + first;
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
  std::uint16_t* place_ = nullptr;
  std::array<float, kStripElements> values_{};
};

template <bool kWithParity>
Parities sgd_half(DType dtype, void* parameter, void* gradient, void* momentum, std::size_t count,
                  const SgdStep& step) {
  Parities seen;
  for (std::size_t first = 0; first < count; first += kStripElements) {
    const std::size_t part = std::min(kStripElements, count - first);
    Wide p(dtype, parameter, first, part);
    Wide g(dtype, gradient, first, part);
    Wide b(dtype, step.momentum == 0 ? nullptr : momentum, first, part);
    if (kWithParity) seen.before ^= p.parity() ^ b.parity();
    sgd_typed<false>(p.data(), g.data(), b.data(), part, step);
    p.store();
    b.store();
    if (kWithParity) seen.after ^= p.parity() ^ b.parity();
  }
  return seen;
}

template <bool kWithParity>
Parities adam_half(DType dtype, void* parameter, void* gradient, AdamMemory memory,
                   std::size_t count, const AdamStep& step) {
  Parities seen;
  for (std::size_t first = 0; first < count; first += kStripElements) {
    const std::size_t part = std::min(kStripElements, count - first);
    Wide p(dtype, parameter, first, part);
    Wide g(dtype, gradient, first, part);
    Wide m(dtype, memory.mean, first, part);
    Wide v(dtype, memory.square, first, part);
    if (kWithParity) seen.before ^= p.parity() ^ m.parity() ^ v.parity();
    adam_typed<false>(p.data(), g.data(), m.data(), v.data(), part, step);
    p.store();
    m.store();
    v.store();
    if (kWithParity) seen.after ^= p.parity() ^ m.parity() ^ v.parity();
  }
  return seen;
}

template <bool kWithParity>
Parities sgd_of(DType dtype, void* parameter, const void* gradient, void* momentum,
                std::size_t count, const SgdStep& step) {
  if (dtype == DType::kFloat32) {
    return sgd_typed<kWithParity>(static_cast<float*>(parameter),
                                  static_cast<const float*>(gradient),
                                  static_cast<float*>(momentum), count, step);
  }
  if (dtype == DType::kFloat64) {
    return sgd_typed<kWithParity>(static_cast<double*>(parameter),
                                  static_cast<const double*>(gradient),
                                  static_cast<double*>(momentum), count, step);
  }
  LOCKSTEP_CHECK(is_half(dtype), "optimizers know floating-point types");
  return sgd_half<kWithParity>(dtype, parameter, const_cast<void*>(gradient), momentum, count,
                               step);
}

template <bool kWithParity>
Parities adam_of(DType dtype, void* parameter, const void* gradient, AdamMemory memory,
                 std::size_t count, const AdamStep& step) {
  if (dtype == DType::kFloat32) {
    return adam_typed<kWithParity>(
        static_cast<float*>(parameter), static_cast<const float*>(gradient),
        static_cast<float*>(memory.mean), static_cast<float*>(memory.square), count, step);
  }
  if (dtype == DType::kFloat64) {
    return adam_typed<kWithParity>(
        static_cast<double*>(parameter), static_cast<const double*>(gradient),
        static_cast<double*>(memory.mean), static_cast<double*>(memory.square), count, step);
  }
  LOCKSTEP_CHECK(is_half(dtype), "optimizers know floating-point types");
  return adam_half<kWithParity>(dtype, parameter, const_cast<void*>(gradient), memory, count, step);
}

}  // namespace

void sgd(DType dtype, void* parameter, const void* gradient, void* momentum, std::size_t count,
         const SgdStep& step) {
  sgd_of<false>(dtype, parameter, gradient, momentum, count, step);
}
Parities sgd_with_parity(DType dtype, void* parameter, const void* gradient, void* momentum,
                         std::size_t count, const SgdStep& step) {
  return sgd_of<true>(dtype, parameter, gradient, momentum, count, step);
}

void adam(DType dtype, void* parameter, const void* gradient, AdamMemory memory, std::size_t count,
          const AdamStep& step) {
  adam_of<false>(dtype, parameter, gradient, memory, count, step);
}
Parities adam_with_parity(DType dtype, void* parameter, const void* gradient, AdamMemory memory,
                          std::size_t count, const AdamStep& step) {
  return adam_of<true>(dtype, parameter, gradient, memory, count, step);
}

}  // namespace lockstep::flat
