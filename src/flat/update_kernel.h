// The kernel of an update, for the device's compiler: one block of threads per chunk.
//
//   bytes    every operand is read once and written once, in packs of 16 bytes
//   flight   each thread loads two packs of every operand before it computes. For AdamW in float32
//            these are 128 bytes, or 128 KiB on a multiprocessor with four blocks. That is about
//            four times what must be in flight to reach the speed of the memory
#pragma once

#include "flat/cuda/launch.h"
#include "flat/cuda/runtime.h"
#include "flat/device_chunk.h"
#include "flat/update_launch.h"

namespace lockstep::flat {

// The XOR of what the threads of a warp have seen.
__device__ __forceinline__ std::uint32_t of_warp(std::uint32_t seen) {
#if __CUDA_ARCH__ >= 800
  return __reduce_xor_sync(0xffffffffU, seen);
#else
  for (int distance = 16; distance > 0; distance /= 2)
    seen ^= __shfl_xor_sync(0xffffffffU, seen, distance);
  return seen;
#endif
}
__device__ __forceinline__ std::uint64_t of_warp(std::uint64_t seen) {
  const auto low = of_warp(static_cast<std::uint32_t>(seen));
  const auto high = of_warp(static_cast<std::uint32_t>(seen >> 32));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

// XORs what a warp has seen to the words of a piece. Each warp does this separately, so that none
// waits for the others. All threads of the warp call it.
template <typename Word>
__device__ __forceinline__ void note(const element::Seen<Word>& seen, const WatchedWords& words,
                                     std::uint32_t piece) {
  const Word before = of_warp(seen.before);
  const Word after = of_warp(seen.after);
  const Word applied = of_warp(seen.applied);
  const unsigned lane = threadIdx.x % 32;
  if (lane >= 3) return;
  unsigned long long* const to = lane == 0 ? words.before : lane == 1 ? words.after : words.applied;
  atomicXor(to + piece, lane == 0 ? before : lane == 1 ? after : applied);
}

// Copies a note. One block of threads calls it.
__device__ __forceinline__ void write(const Note& note) {
  const auto* const from = static_cast<const unsigned char*>(note.from);
  auto* const to = static_cast<unsigned char*>(note.to);
  for (unsigned i = threadIdx.x; i < note.bytes; i += blockDim.x) to[i] = from[i];
}

// Blocks of threads that a multiprocessor runs at a time. With masters and parity a thread needs
// more registers than four blocks leave, and so it does with a third state.
template <typename Of, typename Rule, bool kWithParity>
inline constexpr int kResident = 4 - (kWithParity && Of::kMasters ? 1 : 0) -
                                 (Rule::kStates > 2 ? 1 : 0);

template <typename Of, typename Rule, bool kWithParity, element::Caching kCaching>
__global__ void __launch_bounds__(cuda::kThreads, kResident<Of, Rule, kWithParity>)
    update_kernel(const __grid_constant__ UpdateTask task) {
  const Chunk chunk = task.range.tables.chunks[task.range.chunks.begin + blockIdx.x];
  if (blockIdx.x == 0) write(task.note);
  if (task.skip != nullptr && *task.skip != 0) return;
  const auto seen = element::update_chunk<Of, Rule, kWithParity, kCaching>(
      task, chunk, {threadIdx.x, cuda::kThreads});
  if constexpr (kWithParity) note(seen, task.watched, chunk.piece);
}

// Whether the parameters of an update fit into the device's last cache. Only then are cache hints
// used: larger updates are 7 % slower with them.
inline bool fits_into_cache(const UpdateTask& task) {
  int device = 0;
  int cache = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device),
              "cudaDeviceGetAttribute");
  const auto elements = std::size_t{task.range.chunks.size()} * kChunkElements;
  return elements * size_of(task.range.dtype) <= static_cast<std::size_t>(cache);
}

template <typename Rule, bool kWithParity>
class UpdateLaunch {
 public:
  UpdateLaunch(const UpdateTask& task, cudaStream_t stream) : task_(task), stream_(stream) {}

  // Hints only for the usual type. For all types every kernel would be compiled twice.
  template <typename Of>
  void operator()() const {
    using element::Caching;
    if constexpr (std::is_same_v<Of, element::Types<float, float, false>>) {
      if (fits_into_cache(task_)) return launch<Of, Caching::kPassing>();
    }
    launch<Of, Caching::kPlain>();
  }

 private:
  template <typename Of, element::Caching kCaching>
  void launch() const {
    update_kernel<Of, Rule, kWithParity, kCaching>
        <<<task_.range.chunks.size(), cuda::kThreads, 0, stream_>>>(task_);
    cuda::check(cudaGetLastError(), "launch of the update");
  }

  const UpdateTask& task_;
  cudaStream_t stream_;
};

template <typename Rule, bool kWithParity>
void launch_update(const UpdateTask& task, cudaStream_t stream) {
  element::choose_types(task.range.dtype, task.gradients.dtype, task.masters != nullptr,
                        UpdateLaunch<Rule, kWithParity>(task, stream));
}

}  // namespace lockstep::flat
