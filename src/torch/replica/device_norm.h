// The arithmetic of a batch norm whose statistics come from several passes: LibTorch's kernels on a
// CPU and, fused, on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::replica {

// A pass through a layer, with the statistics that it is normalised by.
struct NormPass {
  at::Tensor input;
  at::Tensor weight;  // undefined: the layer has none
  at::Tensor mean;    // of the type that the pass is computed in, as the next
  at::Tensor variance;
  double eps = 0;
};

// bfloat16 and float16 are computed in float32.
at::ScalarType computed_in(const at::Tensor& input);

// Of the samples of this pass, by channel: [mean, variance].
at::Tensor mean_and_variance(const at::Tensor& input);

// The output of the layer.
at::Tensor normalized(const NormPass& pass, const at::Tensor& bias);

// Sums over samples, by channel: of the gradient dy of the output, and of dy · x̂, where x̂ is the
// input minus its mean, divided by its deviation. They are the gradients of bias and weight.
struct NormSums {
  at::Tensor dy;
  at::Tensor dy_xhat;
};
NormSums own_sums(const NormPass& pass, const at::Tensor& dy);

// The gradient of the input: (dy − mean of dy − x̂ · mean of dy · x̂) · weight / deviation. `all` has
// the sums over all passes that share the statistics, on any device; `count` is how many values they add up.
at::Tensor input_gradient(const NormPass& pass, const at::Tensor& dy, const NormSums& all,
                          double count);

}  // namespace lockstep::replica
