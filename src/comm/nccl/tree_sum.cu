// One pass over memory: every operand is read once, the sum is written once, in packs of 16 bytes where all begin at such.
#include "comm/cuda/check.h"
#include "comm/cuda/launch.h"
#include "comm/nccl/tree_sum.h"
#include "comm/nccl/tree_sum_element.h"

namespace lockstep::comm {
namespace {

using element::SumArguments;

template <typename T, typename Op, int kOperands, int kWidth>
__global__ void tree_sum_kernel(const SumArguments arguments) {
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

struct Launch {
  const SumArguments& arguments;
  cudaStream_t stream;

  template <typename T, typename Op, int kOperands, int kWidth>
  void operator()() const {
    const std::size_t packs = (arguments.count + kWidth - 1) / kWidth;
    tree_sum_kernel<T, Op, kOperands, kWidth>
        <<<cuda::blocks_for(packs), cuda::kThreads, 0, stream>>>(arguments);
  }
};

}  // namespace

void queue_tree_sum(const SumTask& task, void* stream) {
  if (task.count == 0) return;
  const SumArguments arguments = element::arguments_of(task);
  element::choose(task.fold, element::known_operands(task), element::all_aligned(task, 16),
                  Launch{arguments, static_cast<cudaStream_t>(stream)});
  cuda::check(cudaGetLastError(), "launch of the sum");
}

}  // namespace lockstep::comm
