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
  bool amsgrad;
};
template <typename T>
struct RmsPropNumbers {
  T lr;
  T alpha;
  T fresh;
  T eps;
  T decay;
  T momentum;
  bool centered;
  bool moves;  // has momentum
};
template <typename T>
struct AdagradNumbers {
  T lr;
  T eps;
  T decay;
  T start;
  bool first;
};

template <typename T>
struct LarsNumbers {
  T lr;
  T momentum;
  T fresh;
  T decay;
  T trust;
  bool nesterov;
  bool first;
  bool moves;  // has momentum
};
template <typename T>
struct LambNumbers {
  T beta1;
  T beta2;
  T fresh1;
  T fresh2;
  T mean;  // factor of the mean: a division by its inverse would be slower
  T root;  // factor of the root of the square
  T eps;
  T decay;
  T size;  // of the change: lr · trust
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
          step.decoupled ? 0 : step.weight_decay,
          step.amsgrad};
}
inline RmsPropNumbers<double> numbers_of(const RmsPropStep& step) {
  return {step.lr,           step.alpha,    1 - step.alpha, step.eps,
          step.weight_decay, step.momentum, step.centered,  step.momentum != 0};
}
inline AdagradNumbers<double> numbers_of(const AdagradStep& step) {
  return {step.lr / (1 + static_cast<double>(step.step - 1) * step.lr_decay), step.eps,
          step.weight_decay, step.start, step.step == 1};
}
inline LarsNumbers<double> numbers_of(const LarsStep& step) {
  return {step.lr,    step.momentum, 1 - step.dampening, step.weight_decay,
          step.trust, step.nesterov, step.first,         step.momentum != 0};
}
inline LambNumbers<double> numbers_of(const LambStep& step) {
  const auto t = static_cast<double>(step.step);
  return {step.beta1,
          step.beta2,
          1 - step.beta1,
          1 - step.beta2,
          1 / (1 - std::pow(step.beta1, t)),
          1 / std::sqrt(1 - std::pow(step.beta2, t)),
          step.eps,
          step.weight_decay,
          step.lr * step.trust};
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
  return {static_cast<T>(of.size),   static_cast<T>(of.root),
          static_cast<T>(of.beta1),  static_cast<T>(of.beta2),
          static_cast<T>(of.fresh1), static_cast<T>(of.fresh2),
          static_cast<T>(of.eps),    static_cast<T>(of.shrink),
          static_cast<T>(of.decay),  of.amsgrad};
}
template <typename T>
LOCKSTEP_DEVICE RmsPropNumbers<T> in(const RmsPropNumbers<double>& of) {
  return {static_cast<T>(of.lr),
          static_cast<T>(of.alpha),
          static_cast<T>(of.fresh),
          static_cast<T>(of.eps),
          static_cast<T>(of.decay),
          static_cast<T>(of.momentum),
          of.centered,
          of.moves};
}
template <typename T>
LOCKSTEP_DEVICE AdagradNumbers<T> in(const AdagradNumbers<double>& of) {
  return {static_cast<T>(of.lr), static_cast<T>(of.eps), static_cast<T>(of.decay),
          static_cast<T>(of.start), of.first};
}
template <typename T>
LOCKSTEP_DEVICE LarsNumbers<T> in(const LarsNumbers<double>& of) {
  return {static_cast<T>(of.lr),
          static_cast<T>(of.momentum),
          static_cast<T>(of.fresh),
          static_cast<T>(of.decay),
          static_cast<T>(of.trust),
          of.nesterov,
          of.first,
          of.moves};
}
template <typename T>
LOCKSTEP_DEVICE LambNumbers<T> in(const LambNumbers<double>& of) {
  return {static_cast<T>(of.beta1),  static_cast<T>(of.beta2), static_cast<T>(of.fresh1),
          static_cast<T>(of.fresh2), static_cast<T>(of.mean),  static_cast<T>(of.root),
          static_cast<T>(of.eps),    static_cast<T>(of.decay), static_cast<T>(of.size)};
}

// Which parts of the formula a step has. The numbers say so, or the compiler knows it. A decay of 0
// is left out, because 0 · p is a NaN if p is infinite.
struct Form {
  bool decays = false;
  bool first = false;
  bool nesterov = false;
  bool amsgrad = false;
  bool centered = false;
  bool moves = false;  // has momentum
};
template <typename T>
LOCKSTEP_DEVICE Form form_of(const SgdNumbers<T>& of) {
  return {.decays = of.decay != T{0}, .first = of.first, .nesterov = of.nesterov};
}
template <typename T>
LOCKSTEP_DEVICE Form form_of(const AdamNumbers<T>& of) {
  return {.decays = of.decay != T{0}, .amsgrad = of.amsgrad};
}
template <typename T>
LOCKSTEP_DEVICE Form form_of(const RmsPropNumbers<T>& of) {
  return {.decays = of.decay != T{0}, .centered = of.centered, .moves = of.moves};
}
template <typename T>
LOCKSTEP_DEVICE Form form_of(const AdagradNumbers<T>& of) {
  return {.decays = of.decay != T{0}, .first = of.first};
}
template <typename T>
LOCKSTEP_DEVICE Form form_of(const LarsNumbers<T>& of) {
  return {
      .decays = of.decay != T{0}, .first = of.first, .nesterov = of.nesterov, .moves = of.moves};
}
template <typename T>
LOCKSTEP_DEVICE Form form_of(const LambNumbers<T>& of) {
  return {.decays = of.decay != T{0}};
}

// The trust of a layer-wise rule in a parameter. It follows from the norm of the parameter and the
// norm of what moves it: of its gradient (LARS) or of its change (LAMB).
struct Trust {
  double coefficient = 1;
  double decay = 0;
  double eps = 0;
  bool adapts = true;  // false: the trust is 1

  LOCKSTEP_DEVICE double of(double weight, double other) const {
    using element::add, element::multiply, element::divide;
    if (!adapts || !(weight > 0) || !(other > 0)) return 1;
    return divide(multiply(coefficient, weight), add(add(other, multiply(decay, weight)), eps));
  }
};
LOCKSTEP_DEVICE LarsNumbers<double> trusted(LarsNumbers<double> of, double trust) {
  of.trust = trust;
  return of;
}
LOCKSTEP_DEVICE LambNumbers<double> trusted(LambNumbers<double> of, double trust) {
  of.size = multiply(of.size, trust);
  return of;
}

// The formulas take Values of type T: one element, or a row of elements (flat/rows.h).
template <typename T, typename Values>
LOCKSTEP_DEVICE Values decayed(const Values& g, const Values& p, T decay, Form form) {
  using element::add, element::multiply;
  return form.decays ? add(g, multiply(decay, p)) : g;
}

// An average of weights; `fresh` is the weight of the new value.
template <typename T, typename Values>
LOCKSTEP_DEVICE Values averaged(const Values& average, const Values& value, T fresh) {
  using element::add, element::subtract, element::multiply;
  return add(average, multiply(fresh, subtract(value, average)));
}

// The rules with one interface: how many states they have, which of these a form uses, and the
// formula, apply(p, g, s, numbers, form). `s` are the states. It has at least one element, so that
// it can be an array.
template <int kCount, template <typename> typename NumbersOf>
struct UsesAll {
  static constexpr int kStates = kCount;
  template <typename T>
  using Numbers = NumbersOf<T>;
  LOCKSTEP_DEVICE static constexpr bool uses(int, Form) { return true; }
};

struct PlainSgd : UsesAll<0, SgdNumbers> {
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&)[1],
                                    const SgdNumbers<T>& of, Form form) {
    using element::subtract, element::multiply;
    p = subtract(p, multiply(of.lr, decayed(g, p, of.decay, form)));
  }
};

// Momentum takes up d; returns what the parameter changes by, before the learning rate.
template <typename Values, typename Numbers>
LOCKSTEP_DEVICE Values moved(const Values& d, Values& b, const Numbers& of, Form form) {
  using element::add, element::multiply;
  b = form.first ? d : add(multiply(of.momentum, b), multiply(of.fresh, d));
  return form.nesterov ? add(d, multiply(of.momentum, b)) : b;
}

struct MomentumSgd : UsesAll<1, SgdNumbers> {
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&s)[1],
                                    const SgdNumbers<T>& of, Form form) {
    using element::subtract, element::multiply;
    const Values d = decayed(g, p, of.decay, form);
    p = subtract(p, multiply(of.lr, moved(d, s[0], of, form)));
  }
};

struct Lars : UsesAll<1, LarsNumbers> {
  LOCKSTEP_DEVICE static constexpr bool uses(int, Form form) { return form.moves; }
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&s)[1],
                                    const LarsNumbers<T>& of, Form form) {
    using element::subtract, element::multiply;
    const Values d = multiply(of.trust, decayed(g, p, of.decay, form));
    p = subtract(p, multiply(of.lr, form.moves ? moved(d, s[0], of, form) : d));
  }
};

// Adam in two halves: mean and square, and what becomes of the parameter.
template <typename T, typename Values>
LOCKSTEP_DEVICE void adam_moments(const Values& p, const Values& g, Values& m, Values& v,
                                  const AdamNumbers<T>& of, Form form) {
  using element::add, element::multiply;
  const Values d = decayed(g, p, of.decay, form);
  m = add(multiply(of.beta1, m), multiply(of.fresh1, d));
  v = add(multiply(of.beta2, v), multiply(multiply(of.fresh2, d), d));
}
template <typename T, typename Values>
LOCKSTEP_DEVICE void adam_change(Values& p, const Values& m, const Values& x,
                                 const AdamNumbers<T>& of) {
  using element::add, element::subtract, element::multiply;
  using element::divide, element::square_root;
  const Values change = divide(multiply(of.size, m), add(divide(square_root(x), of.root), of.eps));
  p = subtract(multiply(p, of.shrink), change);
}

struct Adam : UsesAll<2, AdamNumbers> {
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&s)[2],
                                    const AdamNumbers<T>& of, Form form) {
    adam_moments(p, g, s[0], s[1], of, form);
    adam_change(p, s[0], s[1], of);
  }
};

// Returns the change of the parameter, before trust and learning rate.
template <typename T, typename Values>
LOCKSTEP_DEVICE Values lamb_change(const Values& p, const Values& g, Values& m, Values& v,
                                   const LambNumbers<T>& of, Form form) {
  using element::add, element::multiply, element::divide, element::square_root;
  m = add(multiply(of.beta1, m), multiply(of.fresh1, g));
  v = add(multiply(of.beta2, v), multiply(multiply(of.fresh2, g), g));
  const Values r = divide(multiply(of.mean, m), add(multiply(of.root, square_root(v)), of.eps));
  return decayed(r, p, of.decay, form);
}

struct Lamb : UsesAll<2, LambNumbers> {
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&s)[2],
                                    const LambNumbers<T>& of, Form form) {
    using element::subtract, element::multiply;
    p = subtract(p, multiply(of.size, lamb_change(p, g, s[0], s[1], of, form)));
  }
};

// With a third state, which not every group of an optimizer need use.
struct Amsgrad : UsesAll<3, AdamNumbers> {
  LOCKSTEP_DEVICE static constexpr bool uses(int state, Form form) {
    return state < 2 || form.amsgrad;
  }
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&s)[3],
                                    const AdamNumbers<T>& of, Form form) {
    using element::larger;
    adam_moments(p, g, s[0], s[1], of, form);
    if (form.amsgrad) s[2] = larger(s[2], s[1]);
    adam_change(p, s[0], form.amsgrad ? s[2] : s[1], of);
  }
};

struct RmsProp : UsesAll<3, RmsPropNumbers> {
  LOCKSTEP_DEVICE static constexpr bool uses(int state, Form form) {
    return state == 0 || (state == 1 ? form.centered : form.moves);
  }
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&s)[3],
                                    const RmsPropNumbers<T>& of, Form form) {
    using element::add, element::subtract, element::multiply;
    using element::divide, element::square_root;
    Values& v = s[0];
    Values& m = s[1];
    Values& b = s[2];
    const Values d = decayed(g, p, of.decay, form);
    v = add(multiply(of.alpha, v), multiply(multiply(of.fresh, d), d));
    if (form.centered) m = add(multiply(of.alpha, m), multiply(of.fresh, d));
    const Values square = form.centered ? subtract(v, multiply(m, m)) : v;
    const Values c = add(square_root(square), of.eps);
    if (form.moves) b = add(multiply(of.momentum, b), divide(d, c));
    p = subtract(p, form.moves ? multiply(of.lr, b) : divide(multiply(of.lr, d), c));
  }
};

struct Adagrad : UsesAll<1, AdagradNumbers> {
  template <typename T, typename Values>
  LOCKSTEP_DEVICE static void apply(Values& p, const Values& g, Values (&s)[1],
                                    const AdagradNumbers<T>& of, Form form) {
    using element::add, element::subtract, element::multiply;
    using element::divide, element::square_root;
    const Values d = decayed(g, p, of.decay, form);
    const Values square = multiply(d, d);
    s[0] = form.first ? add(of.start, square) : add(s[0], square);
    p = subtract(p, divide(multiply(of.lr, d), add(square_root(s[0]), of.eps)));
  }
};

}  // namespace lockstep::flat::element
