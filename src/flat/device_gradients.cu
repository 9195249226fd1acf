// What happens to gradients on a device before an update: they are gathered and added, and their
// norm is computed.
#include "flat/fold.h"
#include "flat/cuda/runtime.h"
#include "flat/cuda/launch.h"
#include "flat/device_chunk.h"

namespace lockstep::flat {
namespace {

using cuda::kThreads;
using element::kTile;

// kLanes threads sum one block of the layout, one thread per lane. A block of threads works on
// kChunksAtOnce chunks.
constexpr unsigned kLanes = kSquareLanes;
constexpr unsigned kBlocksOfChunk = kChunkElements / plan::kBlockElements;
constexpr unsigned kChunksAtOnce = kThreads / kLanes / kBlocksOfChunk;

template <typename Of>
__global__ void squares_kernel(const SquaresTask task) {
  const unsigned group = threadIdx.x / kLanes;
  const unsigned number =
      task.range.chunks.begin + blockIdx.x * kChunksAtOnce + group / kBlocksOfChunk;
  const unsigned first = group % kBlocksOfChunk * plan::kBlockElements;
  double sum = 0;
  double* out = nullptr;
  if (number < task.range.chunks.end) {
    const Chunk chunk = task.range.tables.chunks[number];
    const EntryOffsets place = task.range.tables.places[chunk.entry];
    const auto* const from = element::gradient_at<Of>(task.gradients, place, chunk);
    if (first < chunk.count) {
      const unsigned left = chunk.count - first;
      const unsigned count = left < plan::kBlockElements ? left : plan::kBlockElements;
      out = task.squares + place.first_block + chunk.block + group % kBlocksOfChunk;
      if (from != nullptr)
        sum = element::lane_of_squares<Of>(from + first, count, threadIdx.x % kLanes);
    }
  }
  // Adds pairs of neighbours, then pairs of pairs … All threads must come here: the shuffle needs
  // the whole warp.
  for (unsigned distance = 1; distance < kLanes; distance *= 2)
    sum = element::add(sum, __shfl_xor_sync(0xffffffffU, sum, distance));
  if (out != nullptr && threadIdx.x % kLanes == 0) *out = sum;
}

struct SquaresLaunch {
  const SquaresTask& task;
  cudaStream_t stream;

  template <typename Of>
  void operator()() const {
    const unsigned blocks = (task.range.chunks.size() + kChunksAtOnce - 1) / kChunksAtOnce;
    squares_kernel<Of><<<blocks, kThreads, 0, stream>>>(task);
  }
};

// The sum of one tile. Every thread of the block calls it; the result is for thread 0.
__device__ double sum_of_tile(const double* values, std::size_t count) {
  __shared__ double tile[kTile];
  const auto in_tile = static_cast<std::uint32_t>(count < kTile ? count : kTile);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < in_tile; i += kThreads) tile[i] = values[i];
  for (std::uint32_t half = 1; half < in_tile; half *= 2) {
    __syncthreads();
    element::tile_level(tile, in_tile, half, {threadIdx.x, kThreads});
  }
  __syncthreads();
  return in_tile == 0 ? 0 : tile[0];
}

// Every block of threads sums one tile. The last block that arrives adds the sums of the tiles, in
// place. The fences make the sums of the other blocks visible to it. So the norm needs one launch,
// and the order of addition does not depend on which block is last.
__global__ void clip_kernel(const ClipTask task) {
  __shared__ bool last;
  const std::size_t first = std::size_t{blockIdx.x} * kTile;
  const double sum = sum_of_tile(task.squares + first, task.blocks - first);
  if (threadIdx.x == 0) {
    task.partials[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(task.arrived, 1U) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  std::size_t left = gridDim.x;
  while (left > 1) {
    const std::size_t tiles = (left + kTile - 1) / kTile;
    for (std::size_t i = 0; i < tiles; ++i) {
      const double part = sum_of_tile(task.partials + i * kTile, left - i * kTile);
      if (threadIdx.x == 0) task.partials[i] = part;
    }
    __syncthreads();
    left = tiles;
  }
  if (threadIdx.x != 0) return;
  *task.result = element::clipping_of(task.partials[0], task.most, task.unscale);
  *task.arrived = 0;
}

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

void queue_squares(const SquaresTask& task, void* stream) {
  if (task.range.chunks.size() == 0) return;
  element::choose_types(task.range.dtype, task.gradients.dtype, task.masters,
                        SquaresLaunch{task, static_cast<cudaStream_t>(stream)});
  cuda::check(cudaGetLastError(), "launch of the sums of squares");
}

std::size_t clip_partials(std::size_t blocks) {
  return blocks == 0 ? 1 : (blocks + kTile - 1) / kTile;
}

void queue_clip(const ClipTask& task, void* stream) {
  const auto tiles = static_cast<unsigned>(clip_partials(task.blocks));
  clip_kernel<<<tiles, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(task);
  cuda::check(cudaGetLastError(), "launch of the norm");
}

void queue_gather(const GatherTask& task, void* stream) {
  if (task.range.chunks.size() == 0) return;
  LOCKSTEP_CHECK(element::aligned(task.flat, 16), "flat memory begins at a multiple of 16 bytes");
  element::choose_gather(task.range.dtype, task.flat_dtype,
                         GatherLaunch{task, static_cast<cudaStream_t>(stream)});
  cuda::check(cudaGetLastError(), "launch of gathering");
}

}  // namespace lockstep::flat
