// The update on a GPU: queued, one kernel for all parameters of a type.
#pragma once

#include <memory>

#include "torch/optim/impl.h"

namespace lockstep::optim {

// Threads:   one caller at a time.
// Blocking:  norm(), until the GPU has worked it out; update() for the norm of some steps before, with clipping.
// Failure:   BadInput from update() and norm() when a norm was not finite, whose step has changed nothing.
// Ownership: borrows the optimizer.
class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  // After the optimizer has counted the step.
  virtual void update() = 0;
  // What watched updates have seen, of all that the host has not looked at yet: it is compared, and becomes the
  // optimizer's. Blocking.
  virtual void collect() = 0;

  // Of the gradients of the last step, with clipping.
  virtual double norm() = 0;
};

// Unavailable where this build has no CUDA.
std::unique_ptr<DeviceStep> make_device_step(Optimizer::Impl& optimizer);

}  // namespace lockstep::optim
