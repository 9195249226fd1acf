#include <lockstep/errors.h>

#include "torch/optim/update.h"

namespace lockstep::optim {

std::unique_ptr<Update> make_device_step(Trained&) {
  throw Unavailable("this build of Lockstep has no optimizers for GPUs: build it with CUDA");
}

}  // namespace lockstep::optim
