// Norms on a device: of the gradients, of parameters and of changes; over all of them, and by entry.
#include "flat/cuda/runtime.h"
#include "flat/cuda/launch.h"
#include "flat/device_norms.h"

namespace lockstep::flat {
namespace {

using cuda::kThreads;
using element::kRun, element::kTile;

constexpr unsigned kBlocksOfChunk = kChunkElements / plan::kBlockElements;

// Some threads measure one block of the layout. A block of threads works on several chunks.
template <typename Measure, typename Values>
struct Cut {
  static constexpr unsigned kOfBlock = element::Lanes<Measure, Values>::kThreads;
  static constexpr unsigned kChunks = kThreads / kOfBlock / kBlocksOfChunk;
};

template <typename Measure, typename Values, typename Task>
__global__ void row_kernel(const __grid_constant__ Task task, const DeviceRange range) {
  using Of = Cut<Measure, Values>;
  const unsigned group = threadIdx.x / Of::kOfBlock;
  const unsigned number = range.chunks.begin + blockIdx.x * Of::kChunks + group / kBlocksOfChunk;
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
        all = element::Lanes<Measure, Values>::of(values, first, count,
                                                  threadIdx.x % Of::kOfBlock);
    }
  }
  // Joins what neighbouring threads have, then what pairs have … All threads must come here: the
  // shuffle needs the whole warp.
  for (unsigned distance = 1; distance < Of::kOfBlock; distance *= 2)
    all = Measure::join(all, __shfl_xor_sync(0xffffffffU, all, distance));
  if (out != nullptr && threadIdx.x % Of::kOfBlock == 0) *out = all;
}

template <typename Measure, typename Values, typename Task>
void launch_row(const Task& task, const DeviceRange& range, cudaStream_t stream) {
  constexpr unsigned kChunks = Cut<Measure, Values>::kChunks;
  const unsigned blocks = (range.chunks.size() + kChunks - 1) / kChunks;
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

// Joins nodes of a tree, one for each thread of a warp, of which node `node` is this thread's. The
// result is for the first thread. The whole warp calls it.
template <typename Measure>
__device__ double join_warp(double own, unsigned node, unsigned nodes) {
  for (unsigned distance = 1; distance < cuda::kWarp; distance *= 2) {
    const double right = __shfl_down_sync(0xffffffffU, own, distance);
    if (node % (2 * distance) == 0 && node + distance < nodes) own = Measure::join(own, right);
  }
  return own;
}

// One number for a tile, of which every thread of the block has its run. The result is for thread 0.
template <typename Measure>
__device__ double join_tile(double (&run)[kRun], unsigned in_tile) {
  static_assert(kThreads * kRun == kTile);
  constexpr unsigned kOfWarp = cuda::kWarp * kRun;
  __shared__ double warps[kThreads / cuda::kWarp];
  const double own = element::join_run<Measure>(run, threadIdx.x * kRun, in_tile);
  const double all = join_warp<Measure>(own, threadIdx.x, (in_tile + kRun - 1) / kRun);
  const unsigned lane = threadIdx.x % cuda::kWarp;
  __syncthreads();  // what was there has been read
  if (lane == 0) warps[threadIdx.x / cuda::kWarp] = all;
  __syncthreads();
  if (threadIdx.x >= cuda::kWarp) return 0;
  const double of_warp = lane < kThreads / cuda::kWarp ? warps[lane] : 0;
  return join_warp<Measure>(of_warp, lane, (in_tile + kOfWarp - 1) / kOfWarp);
}

__device__ unsigned in_tile(std::size_t count) {
  return static_cast<unsigned>(count < kTile ? count : kTile);
}

// One number for `count` values, in place: values[0] is the result, for thread 0. Every thread of
// the block calls it. The next tile is loaded while one is joined.
template <typename Measure>
__device__ void join_all(double* values, std::size_t count) {
  while (count > 1) {
    const std::size_t tiles = (count + kTile - 1) / kTile;
    double next[kRun];
    element::load_run(values, threadIdx.x * kRun, in_tile(count), next);
    for (std::size_t i = 0; i < tiles; ++i) {
      double run[kRun];
      for (unsigned k = 0; k < kRun; ++k) run[k] = next[k];
      const std::size_t left = count - i * kTile;
      if (i + 1 < tiles)
        element::load_run(values + (i + 1) * kTile, threadIdx.x * kRun, in_tile(left - kTile),
                          next);
      const double part = join_tile<Measure>(run, in_tile(left));
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
  const unsigned count = in_tile(task.blocks - first);
  double run[kRun];
  element::load_run(task.row + first, threadIdx.x * kRun, count, run);
  const double all = join_tile<Measure>(run, count);
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
