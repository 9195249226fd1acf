#include "base/check.h"
#include "flat/device_chunk.h"
#include "flat/update_launch.h"

namespace lockstep::flat {
namespace {

// Kernels access flat memory in packs of 16 bytes.
void check_flat(const void* memory) {
  LOCKSTEP_CHECK(element::aligned(memory, 16), "flat memory begins at a multiple of 16 bytes");
}

struct Launch {
  const UpdateTask& task;
  cudaStream_t stream;

  template <typename Rule>
  void operator()() const {
    if (task.watched.before != nullptr) return launch_update<Rule, true>(task, stream);
    launch_update<Rule, false>(task, stream);
  }
};

}  // namespace

void queue_update(const UpdateTask& task, void* stream) {
  if (task.range.chunks.size() == 0) return;
  check_flat(task.parameters);
  check_flat(task.masters);
  for (const void* const state : task.states) check_flat(state);
  check_flat(task.average);
  element::choose_rule(task, Launch{task, static_cast<cudaStream_t>(stream)});
}

}  // namespace lockstep::flat
