// The update on a GPU: queued, one kernel for all parameters of a type.
#pragma once

#include <memory>

#include "torch/optim/update.h"

namespace lockstep::optim {

// norm() and collect() wait until the GPU has done the last step, step() for one of some steps before. BadInput from
// them when a norm was not finite, whose step has changed nothing. Unavailable where this build has no CUDA.
std::unique_ptr<Update> make_device_step(Trained& trained);

}  // namespace lockstep::optim
