// Operations for which LibTorch has one kernel on a GPU, and several on a CPU. The bits differ, so they are used on GPUs
// only: results on CPUs stay as they were.
#pragma once

#include <torch/torch.h>
#include <torch/version.h>

namespace lockstep::models {

// Attention as one kernel, since LibTorch 2.
inline bool has_fused_attention(const torch::Tensor& x) {
  return TORCH_VERSION_MAJOR >= 2 && x.is_cuda();
}

// A linear layer. For more than two dimensions LibTorch's own layer adds the bias with a second kernel; on a GPU this does
// not.
inline torch::Tensor through(torch::nn::Linear& layer, const torch::Tensor& x) {
  return x.is_cuda() ? torch::linear(x, layer->weight, layer->bias) : layer(x);
}

}  // namespace lockstep::models
