// One pass over memory: every operand is read once, and the sum is written once. It uses packs of
// 16 bytes if all addresses are multiples of 16.
#include "flat/cuda/runtime.h"
#include "flat/cuda/launch.h"
#include "flat/tree_program.h"
#include "flat/tree_sum_element.h"

namespace lockstep::flat {
namespace {

template <typename T, typename Op, int kOperands, int kWidth, typename Arguments>
__global__ void tree_sum_kernel(const Arguments arguments) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::size_t packs = arguments.count / kWidth;
  for (std::size_t i = first; i < packs; i += step) {
    element::sum_pack<T, Op, kOperands, kWidth>(arguments, i);
  }
  if constexpr (kWidth > 1) {
    for (std::size_t i = packs * kWidth + first; i < arguments.count; i += step) {
      element::sum_one<T, Op, kOperands>(arguments, i);
    }
  }
}

template <typename Arguments>
struct Launch {
  Arguments arguments;
  cudaStream_t stream;

  template <typename T, typename Op, int kOperands, int kWidth>
  void operator()() const {
    const std::size_t packs = (arguments.count + kWidth - 1) / kWidth;
    tree_sum_kernel<T, Op, kOperands, kWidth>
        <<<cuda::blocks_for(packs), cuda::kThreads, 0, stream>>>(arguments);
  }
};

template <std::size_t kMost>
void launch(const SumTask& task, int known, void* stream) {
  const Launch<element::SumArguments<kMost>> launch{element::arguments_of<kMost>(task),
                                                    static_cast<cudaStream_t>(stream)};
  element::choose(task.fold, known, element::all_aligned(task, 16), launch);
}

}  // namespace

void queue_tree_sum(const SumTask& task, void* stream) {
  if (task.count == 0) return;
  if (task.operands.size() <= element::kFewOperands) {
    launch<element::kFewOperands>(task, element::known_operands(task), stream);
  } else {
    launch<kMostOperands>(task, 0, stream);
  }
  cuda::check(cudaGetLastError(), "launch of the sum");
}

}  // namespace lockstep::flat
