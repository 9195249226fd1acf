// Where LibTorch has one kernel on a GPU for what are several on a CPU. The bits are others: CPUs keep those that they have
// always had.
#pragma once

#include <torch/torch.h>

namespace lockstep::models {

// For attention; from LibTorch 2 on.
bool has_fused_attention(const torch::Tensor& x);

// LibTorch's layer adds the bias with a kernel of its own to what has more than two dimensions. Not so here on a GPU.
torch::Tensor through(torch::nn::Linear& layer, const torch::Tensor& x);

}  // namespace lockstep::models
