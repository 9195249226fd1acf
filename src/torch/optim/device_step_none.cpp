#include <lockstep/errors.h>

#include "torch/optim/update.h"

namespace lockstep::optim {

namespace {

[[noreturn]] void unavailable() {
  throw Unavailable("this build of Lockstep has no optimizers for GPUs: build it with CUDA");
}

}  // namespace

std::unique_ptr<Update> make_device_step(Trained&) {
  unavailable();
}

std::unique_ptr<Update> make_wrapped_on_device(Trained&, const std::shared_ptr<WrappedOptimizer>&) {
  unavailable();
}

}  // namespace lockstep::optim
