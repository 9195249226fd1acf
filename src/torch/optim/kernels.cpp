#include "torch/optim/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "comm/core/kernels.h"

namespace lockstep::optim {
namespace {

constexpr std::size_t kPiece = 1024;

template <typename T>
void sgd_typed(T* __restrict p, const T* __restrict g, T* __restrict b, std::size_t count,
               const SgdStep& step) {
  const T lr = static_cast<T>(step.lr);
  const T momentum = static_cast<T>(step.momentum);
  const T fresh = static_cast<T>(1 - step.dampening);
  const T decay = static_cast<T>(step.weight_decay);
  const auto decayed = [&](std::size_t i) { return decay == T{0} ? g[i] : g[i] + decay * p[i]; };
  if (step.momentum == 0) {
    for (std::size_t i = 0; i < count; ++i) p[i] = p[i] - lr * decayed(i);
    return;
  }
  if (step.first) {
    for (std::size_t i = 0; i < count; ++i) b[i] = decayed(i);
  } else {
    for (std::size_t i = 0; i < count; ++i) b[i] = momentum * b[i] + fresh * decayed(i);
  }
  if (step.nesterov) {
    for (std::size_t i = 0; i < count; ++i) p[i] = p[i] - lr * (decayed(i) + momentum * b[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) p[i] = p[i] - lr * b[i];
  }
}

template <typename T>
void adam_typed(T* __restrict p, const T* __restrict g, T* __restrict m, T* __restrict v,
                std::size_t count, const AdamStep& step) {
  const auto t = static_cast<double>(step.step);
  const T size = static_cast<T>(step.lr / (1 - std::pow(step.beta1, t)));
  const T root = static_cast<T>(std::sqrt(1 - std::pow(step.beta2, t)));
  const T beta1 = static_cast<T>(step.beta1);
  const T beta2 = static_cast<T>(step.beta2);
  const T fresh1 = static_cast<T>(1 - step.beta1);
  const T fresh2 = static_cast<T>(1 - step.beta2);
  const T eps = static_cast<T>(step.eps);
  const T shrink = static_cast<T>(step.decoupled ? 1 - step.lr * step.weight_decay : 1);
  const T decay = static_cast<T>(step.decoupled ? 0 : step.weight_decay);
  for (std::size_t i = 0; i < count; ++i) {
    const T old = p[i] * shrink;
    const T d = decay == T{0} ? g[i] : g[i] + decay * p[i];
    m[i] = beta1 * m[i] + fresh1 * d;
    v[i] = beta2 * v[i] + fresh2 * d * d;
    p[i] = old - size * m[i] / (std::sqrt(v[i]) / root + eps);
  }
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
