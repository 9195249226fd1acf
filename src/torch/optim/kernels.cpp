#include "torch/optim/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "comm/core/dispatch.h"
#include "comm/core/kernels.h"

namespace lockstep::optim {
namespace {

using comm::kPiece;

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
template <typename T>
LOCKSTEP_INLINE T decayed(T gradient, T parameter, T decay) {
  return decay == T{0} ? gradient : gradient + decay * parameter;
}

template <typename T>
struct PlainSgd {
  LOCKSTEP_INLINE static void run(T* p, const T* g, std::size_t count, SgdNumbers<T> of) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) p[i] = p[i] - of.lr * decayed(g[i], p[i], of.decay);
  }
};

template <typename T, bool kFirst, bool kNesterov>
struct MomentumSgd {
  LOCKSTEP_INLINE static void run(T* p, const T* g, T* b, std::size_t count, SgdNumbers<T> of) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) {
      const T d = decayed(g[i], p[i], of.decay);
      const T velocity = kFirst ? d : of.momentum * b[i] + of.fresh * d;
      b[i] = velocity;
      p[i] = p[i] - of.lr * (kNesterov ? d + of.momentum * velocity : velocity);
    }
  }
};

template <typename T>
void sgd_typed(T* p, const T* g, T* b, std::size_t count, const SgdStep& step) {
  const SgdNumbers<T> of(step);
  if (step.momentum == 0) {
    comm::at_level<PlainSgd<T>>(p, g, count, of);
  } else if (step.first && step.nesterov) {
    comm::at_level<MomentumSgd<T, true, true>>(p, g, b, count, of);
  } else if (step.first) {
    comm::at_level<MomentumSgd<T, true, false>>(p, g, b, count, of);
  } else if (step.nesterov) {
    comm::at_level<MomentumSgd<T, false, true>>(p, g, b, count, of);
  } else {
    comm::at_level<MomentumSgd<T, false, false>>(p, g, b, count, of);
  }
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

template <typename T>
struct AdamLoop {
  LOCKSTEP_INLINE static void run(T* p, const T* g, T* m, T* v, std::size_t count,
                                  AdamNumbers<T> of) {
    LOCKSTEP_VECTOR_LOOP
    for (std::size_t i = 0; i < count; ++i) {
      const T old = p[i] * of.shrink;
      const T d = decayed(g[i], p[i], of.decay);
      const T mean = of.beta1 * m[i] + of.fresh1 * d;
      const T square = of.beta2 * v[i] + of.fresh2 * d * d;
      m[i] = mean;
      v[i] = square;
      p[i] = old - of.size * mean / (std::sqrt(square) / of.root + of.eps);
    }
  }
};

template <typename T>
void adam_typed(T* p, const T* g, T* m, T* v, std::size_t count, const AdamStep& step) {
  comm::at_level<AdamLoop<T>>(p, g, m, v, count, AdamNumbers<T>(step));
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

 private:
  DType dtype_;
  std::size_t count_;
  std::uint16_t* place_ = nullptr;
  std::array<float, kPiece> values_{};
};

void sgd_half(DType dtype, void* parameter, void* gradient, void* momentum, std::size_t count,
              const SgdStep& step) {
  for (std::size_t first = 0; first < count; first += kPiece) {
    const std::size_t part = std::min(kPiece, count - first);
    Wide p(dtype, parameter, first, part);
    Wide g(dtype, gradient, first, part);
    Wide b(dtype, momentum, first, part);
    sgd_typed(p.data(), g.data(), b.data(), part, step);
    p.store();
    b.store();
  }
}

void adam_half(DType dtype, void* parameter, void* gradient, AdamMemory memory, std::size_t count,
               const AdamStep& step) {
  for (std::size_t first = 0; first < count; first += kPiece) {
    const std::size_t part = std::min(kPiece, count - first);
    Wide p(dtype, parameter, first, part);
    Wide g(dtype, gradient, first, part);
    Wide m(dtype, memory.mean, first, part);
    Wide v(dtype, memory.square, first, part);
    adam_typed(p.data(), g.data(), m.data(), v.data(), part, step);
    p.store();
    m.store();
    v.store();
  }
}

}  // namespace

void sgd(DType dtype, void* parameter, const void* gradient, void* momentum, std::size_t count,
         const SgdStep& step) {
  if (dtype == DType::kFloat32) {
    sgd_typed(static_cast<float*>(parameter), static_cast<const float*>(gradient),
              static_cast<float*>(momentum), count, step);
  } else if (dtype == DType::kFloat64) {
    sgd_typed(static_cast<double*>(parameter), static_cast<const double*>(gradient),
              static_cast<double*>(momentum), count, step);
  } else {
    LOCKSTEP_CHECK(comm::is_half(dtype), "optimizers know floating-point types");
    sgd_half(dtype, parameter, const_cast<void*>(gradient), momentum, count, step);
  }
}

void adam(DType dtype, void* parameter, const void* gradient, AdamMemory memory, std::size_t count,
          const AdamStep& step) {
  if (dtype == DType::kFloat32) {
    adam_typed(static_cast<float*>(parameter), static_cast<const float*>(gradient),
               static_cast<float*>(memory.mean), static_cast<float*>(memory.square), count, step);
  } else if (dtype == DType::kFloat64) {
    adam_typed(static_cast<double*>(parameter), static_cast<const double*>(gradient),
               static_cast<double*>(memory.mean), static_cast<double*>(memory.square), count, step);
  } else {
    LOCKSTEP_CHECK(comm::is_half(dtype), "optimizers know floating-point types");
    adam_half(dtype, parameter, const_cast<void*>(gradient), memory, count, step);
  }
}

}  // namespace lockstep::optim
