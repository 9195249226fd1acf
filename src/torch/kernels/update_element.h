// One step of an optimizer on one element: the numbers that a step is made of, worked out once on the host, and the
// formulas of kernels.h. The loops of the CPU and the kernels of a device both read them here, and have the same bits for
// finite values.
#pragma once

#include <cmath>

#include "comm/cuda/element.h"
#include "torch/kernels/kernels.h"

namespace lockstep::optim::element {

// In float64 as they are worked out; a loop takes them in the precision in which it computes.
template <typename T>
struct SgdNumbers {
  T lr;
  T momentum;
  T fresh;
  T decay;
  bool nesterov;
  bool first;
};
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
};

inline SgdNumbers<double> numbers_of(const SgdStep& step) {
  return {step.lr, step.momentum, 1 - step.dampening, step.weight_decay, step.nesterov, step.first};
}
inline AdamNumbers<double> numbers_of(const AdamStep& step) {
  const auto t = static_cast<double>(step.step);
  return {step.lr / (1 - std::pow(step.beta1, t)),
          std::sqrt(1 - std::pow(step.beta2, t)),
          step.beta1,
          step.beta2,
          1 - step.beta1,
          1 - step.beta2,
          step.eps,
          step.decoupled ? 1 - step.lr * step.weight_decay : 1,
          step.decoupled ? 0 : step.weight_decay};
}

template <typename T>
LOCKSTEP_DEVICE SgdNumbers<T> in(const SgdNumbers<double>& of) {
  return {static_cast<T>(of.lr),
          static_cast<T>(of.momentum),
          static_cast<T>(of.fresh),
          static_cast<T>(of.decay),
          of.nesterov,
          of.first};
}
template <typename T>
LOCKSTEP_DEVICE AdamNumbers<T> in(const AdamNumbers<double>& of) {
  return {static_cast<T>(of.size),  static_cast<T>(of.root),   static_cast<T>(of.beta1),
          static_cast<T>(of.beta2), static_cast<T>(of.fresh1), static_cast<T>(of.fresh2),
          static_cast<T>(of.eps),   static_cast<T>(of.shrink), static_cast<T>(of.decay)};
}

// A decay of 0 is left out, as 0 · p would make a NaN of an infinity.
template <typename T>
LOCKSTEP_DEVICE T decayed(T gradient, T parameter, T decay) {
  using comm::element::add, comm::element::multiply;
  return decay == T{0} ? gradient : add(gradient, multiply(decay, parameter));
}

// Without momentum.
template <typename T>
LOCKSTEP_DEVICE void sgd(T& p, T g, const SgdNumbers<T>& of) {
  using comm::element::subtract, comm::element::multiply;
  p = subtract(p, multiply(of.lr, decayed(g, p, of.decay)));
}

// `first` and `nesterov` are the numbers', as the compiler may know them.
template <typename T>
LOCKSTEP_DEVICE void sgd(T& p, T g, T& b, const SgdNumbers<T>& of, bool first, bool nesterov) {
  using comm::element::add, comm::element::subtract, comm::element::multiply;
  const T d = decayed(g, p, of.decay);
  const T velocity = first ? d : add(multiply(of.momentum, b), multiply(of.fresh, d));
  const T change = nesterov ? add(d, multiply(of.momentum, velocity)) : velocity;
  p = subtract(p, multiply(of.lr, change));
  b = velocity;
}

template <typename T>
LOCKSTEP_DEVICE void adam(T& p, T g, T& m, T& v, const AdamNumbers<T>& of) {
  using comm::element::add, comm::element::subtract, comm::element::multiply;
  using comm::element::divide, comm::element::square_root;
  const T d = decayed(g, p, of.decay);
  m = add(multiply(of.beta1, m), multiply(of.fresh1, d));
  v = add(multiply(of.beta2, v), multiply(multiply(of.fresh2, d), d));
  const T change = divide(multiply(of.size, m), add(divide(square_root(v), of.root), of.eps));
  p = subtract(multiply(p, of.shrink), change);
}

}  // namespace lockstep::optim::element
