#include "flat/cuda/runtime.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

namespace lockstep::cuda {

void fail(const char* call, const char* why) {
  throw Unavailable(fmt::format("the GPU cannot be used: {}: {}", call, why));
}

}  // namespace lockstep::cuda
