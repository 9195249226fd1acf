// Activation checkpointing: a part of the forward pass keeps nothing for backward, and backward runs
// it again. It costs time and saves memory.
#pragma once

#include <torch/types.h>

#include <concepts>
#include <functional>
#include <utility>
#include <vector>

namespace lockstep {

struct CheckpointOptions {
  // What the result means.

  // Tensors that the function writes to, such as BatchNorm's statistics. The second run begins with
  // the values that they had before the first, and leaves them as it found them. If one is not
  // listed here, the function writes to it twice.
  std::vector<torch::Tensor> buffers = {};

  // How fast it comes. False: the function draws no random numbers, so none are kept for it. Only
  // then can a Step on a GPU capture it as a CUDA graph; else its shards run eagerly.
  bool random = true;
};

namespace replica {
// A holder, or a shared pointer. Whether a holder can be called is not asked anywhere: to ask makes
// some of LibTorch's fail to compile.
template <typename Module>
concept ModuleHandle = requires(Module module) {
  module->buffers();
};

// checkpoint(), below.
std::vector<torch::Tensor> checkpoint_lists(
    std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)> function,
    const std::vector<torch::Tensor>& inputs, CheckpointOptions options);
torch::Tensor checkpoint_one(std::function<torch::Tensor(const torch::Tensor&)> function,
                             const torch::Tensor& input, CheckpointOptions options);
}  // namespace replica

// Runs the function and drops what it would keep for backward, except for its inputs. Backward runs
// it once more, with the same random numbers, autocast and buffers, and goes on through that. The
// gradients have the same bits as without the checkpoint:
//
//   auto hidden = lockstep::checkpoint([&](const torch::Tensor& x) { return block->forward(x); }, x);
//   auto hidden = lockstep::checkpoint(block, x);    // the same, with the buffers of the block
//
//   inputs    Tensors of the graph go into the function as its inputs. It may use parameters and
//             constants from outside, but no tensor that was computed from parameters before
//   memory    While the function runs, in both passes, its activations are all there. So use one
//             checkpoint for each block of a model
//   order     If a tensor is used both inside and outside of the function, its gradients are added
//             inside first. With three uses or more this may round otherwise than without
//   nesting   A function may have checkpoints inside
//   eval      Under NoGradGuard it only runs the function
//
// Threads:   backward runs the function on the thread that runs the pass; on a GPU, one of LibTorch's.
//            If other threads draw from LibTorch's default generator during a run of a function that
//            draws, too, backward throws BadInput. In a Step workers take turns.
// Blocking:  as the function.
// Failure:   what the function throws; BadInput if it changes an input, or uses a tensor of the
//            graph that is no input. backward() throws BadInput for create_graph, and if the second
//            run is not like the first: other random numbers, parameters or shapes, or parameters
//            that were changed since.
// Ownership: the graph keeps the function, its inputs and a copy of the buffers.
template <typename Function>
requires(!replica::ModuleHandle<Function>) && requires(Function f, std::vector<torch::Tensor> x) {
  { f(x) } -> std::convertible_to<std::vector<torch::Tensor>>;
}
std::vector<torch::Tensor> checkpoint(Function function, const std::vector<torch::Tensor>& inputs,
                                      const CheckpointOptions& options = {}) {
  return replica::checkpoint_lists(std::move(function), inputs, options);
}

// One tensor to one tensor.
template <typename Function>
requires(!replica::ModuleHandle<Function>) && requires(Function f, torch::Tensor x) {
  { f(x) } -> std::convertible_to<torch::Tensor>;
}
torch::Tensor checkpoint(Function function, const torch::Tensor& input,
                         const CheckpointOptions& options = {}) {
  return replica::checkpoint_one(std::move(function), input, options);
}

// A module: a holder, or a shared pointer.
template <replica::ModuleHandle Module>
torch::Tensor checkpoint(Module module, const torch::Tensor& input) {
  CheckpointOptions options{.buffers = module->buffers()};
  return replica::checkpoint_one(
      [module = std::move(module)](const torch::Tensor& x) mutable -> torch::Tensor {
        return module->forward(x);
      },
      input, std::move(options));
}

}  // namespace lockstep
