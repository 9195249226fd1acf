#include <lockstep/errors.h>

#include "torch/optim/device_step.h"

namespace lockstep::optim {

std::unique_ptr<DeviceStep> make_device_step(Optimizer::Impl&) {
  throw Unavailable("this build of Lockstep has no optimizers for GPUs: build it with CUDA");
}

}  // namespace lockstep::optim
