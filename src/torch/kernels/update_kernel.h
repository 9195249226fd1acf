// The kernel of an update, for the device's compiler: one block of threads per chunk.
//
//   bytes    every operand is read once and written once, in packs of 16 bytes
//   flight   each thread asks for two packs of every operand before it computes: 128 bytes of AdamW in float32, 128 KiB a
//            multiprocessor, some four times what a device needs on its way to be as fast as its memory
#pragma once

#include "comm/cuda/check.h"
#include "comm/cuda/launch.h"
#include "torch/kernels/device_chunk.h"

namespace lockstep::kernels {

// What the threads of a warp have seen, together.
__device__ __forceinline__ unsigned long long of_warp(unsigned long long seen) {
#if __CUDA_ARCH__ >= 800
  const auto low = __reduce_xor_sync(0xffffffffU, static_cast<unsigned>(seen));
  const auto high = __reduce_xor_sync(0xffffffffU, static_cast<unsigned>(seen >> 32));
  return static_cast<unsigned long long>(high) << 32 | low;
#else
  for (int distance = 16; distance > 0; distance /= 2)
    seen ^= __shfl_xor_sync(0xffffffffU, seen, distance);
  return seen;
#endif
}

// XORs what all threads of a block have seen to the words of a piece. Every thread calls it.
__device__ __forceinline__ void note(const element::Seen& seen, const WatchedWords& words,
                                     std::uint32_t piece) {
  constexpr unsigned kWarps = cuda::kThreads / 32;
  __shared__ unsigned long long all[3][kWarps];
  const unsigned long long own[] = {of_warp(seen.before), of_warp(seen.after),
                                    of_warp(seen.applied)};
  if (threadIdx.x % 32 == 0) {
    for (int k = 0; k < 3; ++k) all[k][threadIdx.x / 32] = own[k];
  }
  __syncthreads();
  if (threadIdx.x >= 3) return;
  unsigned long long sum = 0;
  for (unsigned warp = 0; warp < kWarps; ++warp) sum ^= all[threadIdx.x][warp];
  unsigned long long* const to[] = {words.before, words.after, words.applied};
  if (sum != 0) atomicXor(to[threadIdx.x] + piece, sum);
}

template <typename Of, UpdateRule kRule, bool kWatched>
__global__ void __launch_bounds__(cuda::kThreads, 4)
    update_kernel(const __grid_constant__ UpdateTask task) {
  const Chunk chunk = task.range.tables.chunks[task.range.chunks.begin + blockIdx.x];
  if (task.skip != nullptr && *task.skip != 0) return;
  const element::Seen seen =
      element::update_chunk<Of, kRule, kWatched>(task, chunk, {threadIdx.x, cuda::kThreads});
  if constexpr (kWatched) note(seen, task.watched, chunk.piece);
}

template <bool kWatched>
class UpdateLaunch {
 public:
  UpdateLaunch(const UpdateTask& task, cudaStream_t stream) : task_(task), stream_(stream) {}

  template <typename Of>
  void operator()() const {
    if (task_.rule == UpdateRule::kAdam) return launch<Of, UpdateRule::kAdam>();
    launch<Of, UpdateRule::kSgd>();
  }

 private:
  template <typename Of, UpdateRule kRule>
  void launch() const {
    update_kernel<Of, kRule, kWatched>
        <<<task_.range.chunks.size(), cuda::kThreads, 0, stream_>>>(task_);
    cuda::check(cudaGetLastError(), "launch of the update");
  }

  const UpdateTask& task_;
  cudaStream_t stream_;
};

// In a file of its own: half of the kernels, and of the time that they take to compile.
void launch_watched_update(const UpdateTask& task, cudaStream_t stream);

}  // namespace lockstep::kernels
