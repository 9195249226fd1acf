// Norms on a device: of the gradients, of parameters and of changes; over all of them, and by entry.
#include "flat/cuda/runtime.h"
#include "flat/cuda/launch.h"
#include "flat/device_norms.h"

namespace lockstep::flat {
namespace {

using cuda::kThreads;
using element::kTile;

// kLanes threads measure one block of the layout, one thread per lane. A block of threads works on
// kChunksAtOnce chunks.
constexpr unsigned kLanes = kSquareLanes;
constexpr unsigned kBlocksOfChunk = kChunkElements / plan::kBlockElements;
constexpr unsigned kChunksAtOnce = kThreads / kLanes / kBlocksOfChunk;

template <typename Measure, typename Values, typename Task>
__global__ void row_kernel(const __grid_constant__ Task task, const DeviceRange range) {
  const unsigned group = threadIdx.x / kLanes;
  const unsigned number = range.chunks.begin + blockIdx.x * kChunksAtOnce + group / kBlocksOfChunk;
  const unsigned first = group % kBlocksOfChunk * plan::kBlockElements;
  double all = 0;
  double* out = nullptr;
  if (number < range.chunks.end) {
    const Chunk chunk = range.tables.chunks[number];
    if (first < chunk.count) {
      const unsigned left = chunk.count - first;
      const unsigned count = left < plan::kBlockElements ? left : plan::kBlockElements;
      out = task.row + range.tables.places[chunk.entry].first_block + chunk.block +
            group % kBlocksOfChunk;
      const Values values = Values::of(task, chunk);
      if (!values.none())
        all = element::lane_of<Measure>(values, first, count, threadIdx.x % kLanes);
    }
  }
  // Joins pairs of neighbours, then pairs of pairs … All threads must come here: the shuffle needs
  // the whole warp.
  for (unsigned distance = 1; distance < kLanes; distance *= 2)
    all = Measure::join(all, __shfl_xor_sync(0xffffffffU, all, distance));
  if (out != nullptr && threadIdx.x % kLanes == 0) *out = all;
}

template <typename Measure, typename Values, typename Task>
void launch_row(const Task& task, const DeviceRange& range, cudaStream_t stream) {
  const unsigned blocks = (range.chunks.size() + kChunksAtOnce - 1) / kChunksAtOnce;
  row_kernel<Measure, Values><<<blocks, kThreads, 0, stream>>>(task, range);
  cuda::check(cudaGetLastError(), "launch of the norms by block");
}

template <typename Measure>
struct MeasureLaunch {
  const MeasureTask& task;
  cudaStream_t stream;

  template <typename Of>
  void operator()() const {
    launch_row<Measure, element::GradientValues<Of>>(task, task.range, stream);
  }
};
struct MeasureChoice {
  const MeasureTask& task;
  cudaStream_t stream;

  template <typename Measure>
  void operator()() const {
    element::choose_types(task.range.dtype, task.gradients.dtype, task.masters,
                          MeasureLaunch<Measure>{task, stream});
  }
};

struct WeightsLaunch {
  const WeightsTask& task;
  cudaStream_t stream;

  template <typename Of>
  void operator()() const {
    launch_row<element::SumOfSquares, element::WeightValues<Of>>(task, task.range, stream);
  }
};

struct ChangesLaunch {
  const ChangesTask& task;
  cudaStream_t stream;

  template <typename Of>
  void operator()() const {
    launch_row<element::SumOfSquares, element::ChangeValues<Of>>(task, task.update.range, stream);
  }
};

// One number for a tile. Every thread of the block calls it; the result is for thread 0.
template <typename Measure>
__device__ double join_tile(const double* values, std::size_t count) {
  __shared__ double tile[kTile];
  const auto in_tile = static_cast<std::uint32_t>(count < kTile ? count : kTile);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < in_tile; i += kThreads) tile[i] = values[i];
  for (std::uint32_t half = 1; half < in_tile; half *= 2) {
    __syncthreads();
    element::tile_level<Measure>(tile, in_tile, half, {threadIdx.x, kThreads});
  }
  __syncthreads();
  return in_tile == 0 ? 0 : tile[0];
}

// One number for `count` values, in place: values[0] is the result, for thread 0. Every thread of
// the block calls it.
template <typename Measure>
__device__ void join_all(double* values, std::size_t count) {
  while (count > 1) {
    const std::size_t tiles = (count + kTile - 1) / kTile;
    for (std::size_t i = 0; i < tiles; ++i) {
      const double part = join_tile<Measure>(values + i * kTile, count - i * kTile);
      if (threadIdx.x == 0) values[i] = part;
    }
    __syncthreads();
    count = tiles;
  }
}

// Every block of threads joins one tile. The last block that arrives joins the numbers of the tiles,
// in place. The fences make the numbers of the other blocks visible to it. So the norm needs one
// launch, and the order of addition does not depend on which block is last.
template <typename Measure>
__global__ void clip_kernel(const ClipTask task) {
  __shared__ bool last;
  const std::size_t first = std::size_t{blockIdx.x} * kTile;
  const double all = join_tile<Measure>(task.row + first, task.blocks - first);
  if (threadIdx.x == 0) {
    task.partials[blockIdx.x] = all;
    __threadfence();
    last = atomicAdd(task.arrived, 1U) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  join_all<Measure>(task.partials, gridDim.x);
  if (threadIdx.x != 0) return;
  *task.result = element::clipping_of(Measure::norm(task.partials[0]), task.most, task.unscale);
  *task.arrived = 0;
}

struct ClipLaunch {
  const ClipTask& task;
  cudaStream_t stream;

  template <typename Measure>
  void operator()() const {
    const auto tiles = static_cast<unsigned>(clip_partials(task.blocks));
    clip_kernel<Measure><<<tiles, kThreads, 0, stream>>>(task);
  }
};

// One block of threads for an entry of a row.
__global__ void entry_norms_kernel(const EntryNormsTask task) {
  using element::SumOfSquares;
  const auto numbers = element::EntryRow::of(task, blockIdx.y, blockIdx.x);
  join_all<SumOfSquares>(numbers.first, numbers.count);
  if (threadIdx.x != 0) return;
  task.norms[std::size_t{blockIdx.y} * task.entries + blockIdx.x] =
      numbers.count == 0 ? 0 : SumOfSquares::norm(numbers.first[0]);
}

__global__ void trusts_kernel(const TrustTask task) {
  const unsigned entry = blockIdx.x * kThreads + threadIdx.x;
  if (entry < task.entries) element::find_trust(task, entry);
}

}  // namespace

void queue_measure(const MeasureTask& task, void* stream) {
  if (task.range.chunks.size() == 0) return;
  element::choose_measure(task.measure, MeasureChoice{task, static_cast<cudaStream_t>(stream)});
}

void queue_weights(const WeightsTask& task, void* stream) {
  if (task.range.chunks.size() == 0) return;
  element::choose_types(task.range.dtype, task.range.dtype, false,
                        WeightsLaunch{task, static_cast<cudaStream_t>(stream)});
}

void queue_changes(const ChangesTask& task, void* stream) {
  const UpdateTask& update = task.update;
  if (update.range.chunks.size() == 0) return;
  element::choose_types(update.range.dtype, update.gradients.dtype, update.masters != nullptr,
                        ChangesLaunch{task, static_cast<cudaStream_t>(stream)});
}

std::size_t clip_partials(std::size_t blocks) {
  return blocks == 0 ? 1 : (blocks + kTile - 1) / kTile;
}

void queue_clip(const ClipTask& task, void* stream) {
  element::choose_measure(task.measure, ClipLaunch{task, static_cast<cudaStream_t>(stream)});
  cuda::check(cudaGetLastError(), "launch of the norm");
}

void queue_entry_norms(const EntryNormsTask& task, void* stream) {
  if (task.entries == 0 || task.rows == 0) return;
  const dim3 blocks(task.entries, task.rows);
  entry_norms_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(task);
  cuda::check(cudaGetLastError(), "launch of the norms by entry");
}

void queue_trusts(const TrustTask& task, void* stream) {
  if (task.entries == 0) return;
  const unsigned blocks = (task.entries + kThreads - 1) / kThreads;
  trusts_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(task);
  cuda::check(cudaGetLastError(), "launch of the trusts");
}

}  // namespace lockstep::flat
