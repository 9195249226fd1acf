// The arithmetic of one optimizer step over a stretch of elements, without tensors.
//
// Each operation is rounded separately, in the order written here and in the precision of the
// elements. Half types are computed in float32, and each stored value is rounded once. So the bits
// do not depend on how a parameter is cut. The order is that of torch::optim.
//
//   all       d = g + weight_decay·p
//   sgd       b = first ? d : momentum·b + (1 − dampening)·d
//             p = p − lr·(momentum == 0 ? d : nesterov ? d + momentum·b : b)
//   adam      (decoupled: d = g, and first p = p·(1 − lr·weight_decay))
//             m = beta1·m + (1 − beta1)·d
//             v = beta2·v + (1 − beta2)·d·d
//             x = max(x, v)                     (amsgrad; else x is v)
//             p = p − (lr / (1 − beta1^t)) · m / (√x / √(1 − beta2^t) + eps)
//   rmsprop   v = alpha·v + (1 − alpha)·d·d
//             m = alpha·m + (1 − alpha)·d       (centered; else m is 0)
//             c = √(v − m·m) + eps
//             b = momentum·b + d / c
//             p = p − (momentum == 0 ? lr·d / c : lr·b)
//   adagrad   s = (first ? start : s) + d·d
//             p = p − (lr / (1 + (t − 1)·lr_decay)) · d / (√s + eps)
//   lars      d = trust·(g + weight_decay·p), then as sgd
//   lamb      m = beta1·m + (1 − beta1)·g
//             v = beta2·v + (1 − beta2)·g·g
//             u = (1 / (1 − beta1^t))·m / ((1 / √(1 − beta2^t))·√v + eps) + weight_decay·p
//             p = p − (lr·trust)·u
//
// The trust of a parameter is for its caller to find: from norms, before anything is written.
#pragma once

#include <lockstep/buffer.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "flat/parity.h"

namespace lockstep::flat {

// A rule has at most so many states.
inline constexpr std::size_t kMostStates = 3;

// Where an update keeps what it overwrites, so that somebody else can put it back if this process is killed on the way.
// The loops have the old values in registers, and a store beside a division costs nearly nothing; a copy before the
// update costs a pass over memory.
struct Keeping {
  void* parameter = nullptr;
  std::array<void*, kMostStates> state{};  // those that the step uses
  // So many elements are kept; 0 at first. Each element is kept and counted before it changes, in program order.
  std::atomic<std::uint64_t>* elements = nullptr;
};

// Consecutive elements of one parameter: their values, gradients and states.
struct Elements {
  DType dtype = DType::kFloat32;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  std::array<void*, kMostStates> state{};  // in the order of the step; those not used are not read
  std::size_t count = 0;
  const Keeping* keeping = nullptr;  // null: nothing is kept. float32 and float64 only
};

// The numbers of a step. uses() says which states it reads and writes.

// States: momentum.
struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // there is no momentum yet

  bool uses(std::size_t state) const { return state == 0 && momentum != 0; }
};

// States: mean, square, largest square.
struct AdamStep {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;
  std::int64_t step = 1;  // t, from 1
  bool amsgrad = false;

  bool uses(std::size_t state) const { return state < 2 || (state == 2 && amsgrad); }
};

// States: square, mean, momentum.
struct RmsPropStep {
  double lr = 0;
  double alpha = 0;
  double eps = 0;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;

  bool uses(std::size_t state) const {
    return state == 0 || (state == 1 && centered) || (state == 2 && momentum != 0);
  }
};

// States: the sum of squares.
struct AdagradStep {
  double lr = 0;
  double lr_decay = 0;
  double weight_decay = 0;
  double start = 0;  // of the sum, in the first step
  double eps = 0;
  std::int64_t step = 1;  // t, from 1

  bool uses(std::size_t state) const { return state == 0; }
};

// States: momentum.
struct LarsStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // there is no momentum yet
  double trust = 1;

  bool uses(std::size_t state) const { return state == 0 && momentum != 0; }
};

// States: mean, square.
struct LambStep {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  std::int64_t step = 1;  // t, from 1
  double trust = 1;

  bool uses(std::size_t state) const { return state < 2; }
};

// The functions with parity also return the parities of everything that is updated in place,
// parameter and state together.
void update(const Elements& elements, const SgdStep& step);
void update(const Elements& elements, const AdamStep& step);
void update(const Elements& elements, const RmsPropStep& step);
void update(const Elements& elements, const AdagradStep& step);
void update(const Elements& elements, const LarsStep& step);
void update(const Elements& elements, const LambStep& step);
Parities update_with_parity(const Elements& elements, const SgdStep& step);
Parities update_with_parity(const Elements& elements, const AdamStep& step);
Parities update_with_parity(const Elements& elements, const RmsPropStep& step);
Parities update_with_parity(const Elements& elements, const AdagradStep& step);
Parities update_with_parity(const Elements& elements, const LarsStep& step);
Parities update_with_parity(const Elements& elements, const LambStep& step);

// The sum of squares (fold.h) of LAMB's u, over at most kStripElements. Writes nothing.
double squares_of_change(const Elements& elements, const LambStep& step);

// An average of weights: average = average + (1 − decay)·(parameter − average). float32 and float64
// only. With parity: those of the average.
struct Averaged {
  DType dtype = DType::kFloat32;
  const void* parameter = nullptr;
  void* average = nullptr;
  std::size_t count = 0;
};
void average(const Averaged& elements, double decay);
Parities average_with_parity(const Averaged& elements, double decay);

}  // namespace lockstep::flat
