// One step of an optimizer on one element, or on a row of elements: the numbers of a step, which
// the host computes once, and the formulas of update_loops.h. The loops for CPUs and the kernels
// for GPUs both use them, so they give the same bits for finite values.
#pragma once

#include <cmath>

#include "flat/element.h"
#include "flat/update_loops.h"

namespace lockstep::flat::element {

// They are computed in float64. A loop converts them to the precision in which it computes.
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

// Which parts of the formula a step has. The numbers say so, or the compiler knows it. A decay of 0
// is left out, because 0 · p is a NaN if p is infinite.
struct Form {
  bool decays = false;
  bool first = false;
  bool nesterov = false;
};
template <typename T>
LOCKSTEP_DEVICE Form form_of(const SgdNumbers<T>& of) {
  return {of.decay != T{0}, of.first, of.nesterov};
}
template <typename T>
LOCKSTEP_DEVICE Form form_of(const AdamNumbers<T>& of) {
  return {of.decay != T{0}, false, false};
}

// The formulas take Values of type T: one element, or a row of elements (flat/rows.h).
template <typename T, typename Values>
LOCKSTEP_DEVICE Values decayed(const Values& g, const Values& p, T decay, Form form) {
  using element::add, element::multiply;
  return form.decays ? add(g, multiply(decay, p)) : g;
}

// Without momentum.
template <typename T, typename Values>
LOCKSTEP_DEVICE void sgd(Values& p, const Values& g, const SgdNumbers<T>& of, Form form) {
  using element::subtract, element::multiply;
  p = subtract(p, multiply(of.lr, decayed(g, p, of.decay, form)));
}

template <typename T, typename Values>
LOCKSTEP_DEVICE void sgd(Values& p, const Values& g, Values& b, const SgdNumbers<T>& of,
                         Form form) {
  using element::add, element::subtract, element::multiply;
  const Values d = decayed(g, p, of.decay, form);
  b = form.first ? d : add(multiply(of.momentum, b), multiply(of.fresh, d));
  const Values change = form.nesterov ? add(d, multiply(of.momentum, b)) : b;
  p = subtract(p, multiply(of.lr, change));
}

template <typename T, typename Values>
LOCKSTEP_DEVICE void adam(Values& p, const Values& g, Values& m, Values& v,
                          const AdamNumbers<T>& of, Form form) {
  using element::add, element::subtract, element::multiply;
  using element::divide, element::square_root;
  const Values d = decayed(g, p, of.decay, form);
  m = add(multiply(of.beta1, m), multiply(of.fresh1, d));
  v = add(multiply(of.beta2, v), multiply(multiply(of.fresh2, d), d));
  const Values change = divide(multiply(of.size, m), add(divide(square_root(v), of.root), of.eps));
  p = subtract(multiply(p, of.shrink), change);
}

}  // namespace lockstep::flat::element
