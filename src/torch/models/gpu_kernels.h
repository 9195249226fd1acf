// Where LibTorch has one kernel on a GPU for what are several on a CPU. The bits are others: CPUs keep those that they have
// always had.
#pragma once

#include <torch/torch.h>
#include <torch/version.h>

namespace lockstep::models {

// For attention; from LibTorch 2 on.
inline bool has_fused_attention(const torch::Tensor& x) {
  return TORCH_VERSION_MAJOR >= 2 && x.is_cuda();
}

// LibTorch's layer adds the bias with a kernel of its own to what has more than two dimensions. Not so here on a GPU.
inline torch::Tensor through(torch::nn::Linear& layer, const torch::Tensor& x) {
  return x.is_cuda() ? torch::linear(x, layer->weight, layer->bias) : layer(x);
}

}  // namespace lockstep::models
