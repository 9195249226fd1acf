// join() with GPUs of one's choice: the tests' are made up.
#pragma once

#include <lockstep/world.h>

#include "flat/cuda/gpus.h"

namespace lockstep::control {

struct Joining {
  static World join(const JoinOptions& options, cuda::Gpus& gpus);
};

}  // namespace lockstep::control
