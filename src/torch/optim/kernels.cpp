#include "torch/optim/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "comm/core/dispatch.h"
#include "comm/core/kernels.h"
#include "comm/core/rows.h"

namespace lockstep::optim {
namespace {

using comm::kPiece;
using comm::Parities;

// The numbers of a step, in the precision of the elements.
template <typename T>
struct SgdNumbers {
  T lr;
  T momentum;
  T fresh;
  T decay;

  explicit SgdNumbers(const SgdStep& step)
      : lr(static_cast<T>(step.lr)),
        momentum(static_cast<T>(step.momentum)),
        fresh(static_cast<T>(1 - step.dampening)),
        decay(static_cast<T>(step.weight_decay)) {}
};

// A decay of 0 is left out, as 0 · p would make a NaN of an infinity.
template <bool kDecays, typename T, typename Values>
LOCKSTEP_INLINE Values decayed(const Values& gradient, const Values& parameter, T decay) {
  if constexpr (!kDecays) return gradient;
  return gradient + decay * parameter;
}

// Calls `body` with a constant: what it decides is not asked again for every row.
template <typename Body>
Parities decided(bool choice, const Body& body) {
  return choice ? body(std::true_type()) : body(std::false_type());
}

template <typename T, bool kDecays, bool kWatched>
struct PlainSgd {
  LOCKSTEP_INLINE static Parities run(T* p, const T* g, std::size_t count, SgdNumbers<T> of) {
    return comm::for_each_row<T, kWatched>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      const auto old = at.stream(p);
      const auto fresh = old - of.lr * decayed<kDecays>(at.load(g), old, of.decay);
      seen.before(old);
      seen.after(fresh);
      at.store(p, fresh);
    });
  }
};

template <typename T, bool kFirst, bool kNesterov, bool kDecays, bool kWatched>
struct MomentumSgd {
  LOCKSTEP_INLINE static Parities run(T* p, const T* g, T* b, std::size_t count, SgdNumbers<T> of) {
    return comm::for_each_row<T, kWatched>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      const auto old = at.stream(p);
      const auto before = at.stream(b);
      const auto d = decayed<kDecays>(at.load(g), old, of.decay);
      const auto velocity = kFirst ? d : of.momentum * before + of.fresh * d;
      const auto change = kNesterov ? d + of.momentum * velocity : velocity;
      const auto fresh = old - of.lr * change;
      seen.before(old, before);
      seen.after(fresh, velocity);
      at.store(b, velocity);
      at.store(p, fresh);
    });
  }
};

template <bool kWatched, typename T>
Parities sgd_typed(T* p, const T* g, T* b, std::size_t count, const SgdStep& step) {
  const SgdNumbers<T> of(step);
  return decided(of.decay != T{0}, [&](auto decays) {
    constexpr bool kDecays = decltype(decays)::value;
    if (step.momentum == 0) return comm::at_level<PlainSgd<T, kDecays, kWatched>>(p, g, count, of);
    return decided(step.first, [&](auto first) {
      return decided(step.nesterov, [&](auto nesterov) {
        using Loop =
            MomentumSgd<T, decltype(first)::value, decltype(nesterov)::value, kDecays, kWatched>;
        return comm::at_level<Loop>(p, g, b, count, of);
      });
    });
  });
}

template <typename T>
struct AdamNumbers {
  T size;
  T root;
  T beta1;
  T beta2;
  T fresh1;
  T fresh2;
  T eps;
  T shrink;
  T decay;

  explicit AdamNumbers(const AdamStep& step)
      : beta1(static_cast<T>(step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        fresh1(static_cast<T>(1 - step.beta1)),
        fresh2(static_cast<T>(1 - step.beta2)),
        eps(static_cast<T>(step.eps)),
        shrink(static_cast<T>(step.decoupled ? 1 - step.lr * step.weight_decay : 1)),
        decay(static_cast<T>(step.decoupled ? 0 : step.weight_decay)) {
    const auto t = static_cast<double>(step.step);
    size = static_cast<T>(step.lr / (1 - std::pow(step.beta1, t)));
    root = static_cast<T>(std::sqrt(1 - std::pow(step.beta2, t)));
  }
};

template <typename T, bool kDecays, bool kWatched>
struct AdamLoop {
  LOCKSTEP_INLINE static Parities run(T* p, const T* g, T* m, T* v, std::size_t count,
                                      AdamNumbers<T> of) {
    return comm::for_each_row<T, kWatched>(count, [=](auto at, auto& seen) LOCKSTEP_INLINE_BODY {
      const auto old = at.load(p);
      const auto old_mean = at.load(m);
      const auto old_square = at.load(v);
      const auto d = decayed<kDecays>(at.load(g), old, of.decay);
      const auto mean = of.beta1 * old_mean + of.fresh1 * d;
      const auto square = of.beta2 * old_square + of.fresh2 * d * d;
      const auto fresh =
          old * of.shrink - of.size * mean / (comm::square_root(square) / of.root + of.eps);
      seen.before(old, old_mean, old_square);
      seen.after(fresh, mean, square);
      at.store(m, mean);
      at.store(v, square);
      at.store(p, fresh);
    });
  }
};

template <bool kWatched, typename T>
Parities adam_typed(T* p, const T* g, T* m, T* v, std::size_t count, const AdamStep& step) {
  const AdamNumbers<T> of(step);
  return decided(of.decay != T{0}, [&](auto decays) {
    return comm::at_level<AdamLoop<T, decltype(decays)::value, kWatched>>(p, g, m, v, count, of);
  });
}

// A piece of a half-precision stretch in float32: widened, and narrowed again.
class Wide {
 public:
  Wide(DType dtype, void* from, std::size_t first, std::size_t count)
      : dtype_(dtype), count_(count) {
    if (from == nullptr) return;
    place_ = static_cast<std::uint16_t*>(from) + first;
    comm::widen(dtype, place_, values_.data(), count);
  }
  float* data() { return values_.data(); }
  void store() {
    if (place_ != nullptr) comm::narrow(dtype_, values_.data(), place_, count_);
  }
  comm::Parity parity() const {
    return place_ == nullptr ? 0 : comm::parity(dtype_, place_, count_);
  }

 private:
  DType dtype_;
  std::size_t count_;
  std::uint16_t* place_ = nullptr;
  std::array<float, kPiece> values_{};
};

template <bool kWatched>
Parities sgd_half(DType dtype, void* parameter, void* gradient, void* momentum, std::size_t count,
                  const SgdStep& step) {
  Parities seen;
  for (std::size_t first = 0; first < count; first += kPiece) {
    const std::size_t part = std::min(kPiece, count - first);
    Wide p(dtype, parameter, first, part);
    Wide g(dtype, gradient, first, part);
    Wide b(dtype, step.momentum == 0 ? nullptr : momentum, first, part);
    if (kWatched) seen.before ^= p.parity() ^ b.parity();
    sgd_typed<false>(p.data(), g.data(), b.data(), part, step);
    p.store();
    b.store();
    if (kWatched) seen.after ^= p.parity() ^ b.parity();
  }
  return seen;
}

template <bool kWatched>
Parities adam_half(DType dtype, void* parameter, void* gradient, AdamMemory memory,
                   std::size_t count, const AdamStep& step) {
  Parities seen;
  for (std::size_t first = 0; first < count; first += kPiece) {
    const std::size_t part = std::min(kPiece, count - first);
    Wide p(dtype, parameter, first, part);
    Wide g(dtype, gradient, first, part);
    Wide m(dtype, memory.mean, first, part);
    Wide v(dtype, memory.square, first, part);
    if (kWatched) seen.before ^= p.parity() ^ m.parity() ^ v.parity();
    adam_typed<false>(p.data(), g.data(), m.data(), v.data(), part, step);
    p.store();
    m.store();
    v.store();
    if (kWatched) seen.after ^= p.parity() ^ m.parity() ^ v.parity();
  }
  return seen;
}

template <bool kWatched>
Parities sgd_of(DType dtype, void* parameter, const void* gradient, void* momentum,
                std::size_t count, const SgdStep& step) {
  if (dtype == DType::kFloat32) {
    return sgd_typed<kWatched>(static_cast<float*>(parameter), static_cast<const float*>(gradient),
                               static_cast<float*>(momentum), count, step);
  }
  if (dtype == DType::kFloat64) {
    return sgd_typed<kWatched>(static_cast<double*>(parameter),
                               static_cast<const double*>(gradient), static_cast<double*>(momentum),
                               count, step);
  }
  LOCKSTEP_CHECK(comm::is_half(dtype), "optimizers know floating-point types");
  return sgd_half<kWatched>(dtype, parameter, const_cast<void*>(gradient), momentum, count, step);
}

template <bool kWatched>
Parities adam_of(DType dtype, void* parameter, const void* gradient, AdamMemory memory,
                 std::size_t count, const AdamStep& step) {
  if (dtype == DType::kFloat32) {
    return adam_typed<kWatched>(static_cast<float*>(parameter), static_cast<const float*>(gradient),
                                static_cast<float*>(memory.mean),
                                static_cast<float*>(memory.square), count, step);
  }
  if (dtype == DType::kFloat64) {
    return adam_typed<kWatched>(
        static_cast<double*>(parameter), static_cast<const double*>(gradient),
        static_cast<double*>(memory.mean), static_cast<double*>(memory.square), count, step);
  }
  LOCKSTEP_CHECK(comm::is_half(dtype), "optimizers know floating-point types");
  return adam_half<kWatched>(dtype, parameter, const_cast<void*>(gradient), memory, count, step);
}

}  // namespace

void sgd(DType dtype, void* parameter, const void* gradient, void* momentum, std::size_t count,
         const SgdStep& step) {
  sgd_of<false>(dtype, parameter, gradient, momentum, count, step);
}
Parities sgd_watched(DType dtype, void* parameter, const void* gradient, void* momentum,
                     std::size_t count, const SgdStep& step) {
  return sgd_of<true>(dtype, parameter, gradient, momentum, count, step);
}

void adam(DType dtype, void* parameter, const void* gradient, AdamMemory memory, std::size_t count,
          const AdamStep& step) {
  adam_of<false>(dtype, parameter, gradient, memory, count, step);
}
Parities adam_watched(DType dtype, void* parameter, const void* gradient, AdamMemory memory,
                      std::size_t count, const AdamStep& step) {
  return adam_of<true>(dtype, parameter, gradient, memory, count, step);
}

}  // namespace lockstep::optim
