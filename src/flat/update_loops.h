// The arithmetic of one optimizer step over a stretch of elements, without tensors.
//
// Each operation is rounded separately, in the order written here and in the precision of the
// elements. Half types are computed in float32, and each stored value is rounded once. So the bits
// do not depend on how a parameter is cut. The order is that of torch::optim.
//
//   sgd    d = g + weight_decay·p
//          b = first ? d : momentum·b + (1 − dampening)·d
//          p = p − lr·(momentum == 0 ? d : nesterov ? d + momentum·b : b)
//   adam   d = g + weight_decay·p              (decoupled: d = g, and first p = p·(1 − lr·weight_decay))
//          m = beta1·m + (1 − beta1)·d
//          v = beta2·v + (1 − beta2)·d·d
//          p = p − (lr / (1 − beta1^t)) · m / (√v / √(1 − beta2^t) + eps)
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <cstdint>

#include "flat/parity.h"

namespace lockstep::flat {

struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // there is no momentum yet
};

// `momentum` is not read if step.momentum is 0. The functions with parity also return the parities
// of everything that is updated in place, parameter and state together.
void sgd(DType dtype, void* parameter, const void* gradient, void* momentum, std::size_t count,
         const SgdStep& step);
Parities sgd_with_parity(DType dtype, void* parameter, const void* gradient, void* momentum,
                         std::size_t count, const SgdStep& step);

struct AdamStep {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;
  std::int64_t step = 1;  // t, from 1
};

struct AdamMemory {
  void* mean = nullptr;
  void* square = nullptr;
};
void adam(DType dtype, void* parameter, const void* gradient, AdamMemory memory, std::size_t count,
          const AdamStep& step);
Parities adam_with_parity(DType dtype, void* parameter, const void* gradient, AdamMemory memory,
                          std::size_t count, const AdamStep& step);

}  // namespace lockstep::flat
