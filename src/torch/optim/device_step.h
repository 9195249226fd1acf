// The update on a GPU: queued, one kernel for all parameters of a type.
#pragma once

#include <memory>

#include "torch/optim/impl.h"

namespace lockstep::optim {

// Threads:   one caller at a time.
// Blocking:  norm() and collect(), until the GPU has done the last step; begin(), one of some steps before.
// Failure:   BadInput from them when a norm was not finite, whose step has changed nothing; Timeout.
// Ownership: borrows the optimizer.
class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  // Before the optimizer counts the step: looks at what earlier ones have left, as far as there is no more room for it.
  virtual void begin() = 0;
  // After it. The note goes along.
  virtual void update(const kernels::Note& note) = 0;

  // Memory for clipping, so that no step has to take it.
  virtual void prepare_clipping() = 0;
  // Looks at all that steps have left: norms, and what watched updates have seen, which is compared and becomes the
  // optimizer's. Blocking.
  virtual void collect() = 0;
  // Nobody wants to know any more.
  virtual void forget() = 0;

  // Of the gradients of the last step, with clipping.
  virtual double norm() = 0;
};

// Unavailable where this build has no CUDA.
std::unique_ptr<DeviceStep> make_device_step(Optimizer::Impl& optimizer);

}  // namespace lockstep::optim
