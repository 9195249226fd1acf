// Gradients on a device before an update: they are gathered and added.
#include "flat/cuda/runtime.h"
#include "flat/cuda/launch.h"
#include "flat/device_chunk.h"

namespace lockstep::flat {
namespace {

using cuda::kThreads;
template <typename From, typename Flat>
__global__ void gather_kernel(const GatherTask task) {
  const Chunk chunk = task.range.tables.chunks[task.range.chunks.begin + blockIdx.x];
  element::gather_chunk<From, Flat>(task, chunk, {threadIdx.x, kThreads});
}

struct GatherLaunch {
  const GatherTask& task;
  cudaStream_t stream;

  template <typename From, typename Flat>
  void operator()() const {
    gather_kernel<From, Flat><<<task.range.chunks.size(), kThreads, 0, stream>>>(task);
  }
};

}  // namespace

void queue_gather(const GatherTask& task, void* stream) {
  if (task.range.chunks.size() == 0) return;
  LOCKSTEP_CHECK(element::aligned(task.flat, 16), "flat memory begins at a multiple of 16 bytes");
  element::choose_gather(task.range.dtype, task.flat_dtype,
                         GatherLaunch{task, static_cast<cudaStream_t>(stream)});
  cuda::check(cudaGetLastError(), "launch of gathering");
}

}  // namespace lockstep::flat
