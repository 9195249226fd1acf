#include "flat/update_kernel.h"

namespace lockstep::flat {

void launch_watched_update(const UpdateTask& task, cudaStream_t stream) {
  element::choose_types(task.range.dtype, task.gradients.dtype, task.masters != nullptr,
                        UpdateLaunch<true>(task, stream));
}

}  // namespace lockstep::flat
