#include "base/check.h"
#include "flat/update_kernel.h"

namespace lockstep::flat {
namespace {

// Kernels access flat memory in packs of 16 bytes.
void check_flat(const void* memory) {
  LOCKSTEP_CHECK(element::aligned(memory, 16), "flat memory begins at a multiple of 16 bytes");
}

}  // namespace

void queue_update(const UpdateTask& task, void* stream) {
  if (task.range.chunks.size() == 0) return;
  check_flat(task.parameters);
  check_flat(task.masters);
  check_flat(task.states[0]);
  check_flat(task.states[1]);
  const auto on = static_cast<cudaStream_t>(stream);
  if (task.watched.before != nullptr) return launch_watched_update(task, on);
  element::choose_types(task.range.dtype, task.gradients.dtype, task.masters != nullptr,
                        UpdateLaunch<false>(task, on));
}

}  // namespace lockstep::flat
