// Launches the kernels of one rule (update_kernel.h). Some files instantiate it for a few rules
// each, so that kernels are compiled at the same time, and none twice.
#pragma once

#include "flat/cuda/runtime.h"
#include "flat/device_update.h"

namespace lockstep::flat {

template <typename Rule, bool kWithParity>
void launch_update(const UpdateTask& task, cudaStream_t stream);

}  // namespace lockstep::flat
