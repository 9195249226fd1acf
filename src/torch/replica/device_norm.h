// The arithmetic of a batch norm whose statistics come from several passes: LibTorch's kernels on a
// CPU and, fused, on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch/replica/synced_norms.h"

namespace lockstep::replica {

// A pass through a layer, with the statistics that it is normalised by. All but the input has the
// type that the pass is computed in: float32 for half types.
struct NormPass {
  at::Tensor input;
  at::Tensor weight;  // undefined: the layer has none
  at::Tensor mean;
  at::Tensor variance;  // on a CPU
  at::Tensor inverse;   // on a GPU: 1 / √(variance + eps)
  double eps = 0;
};

// Without statistics.
NormPass pass_of(const at::Tensor& input, const at::Tensor& weight, double eps);

// What a layer keeps from step to step.
struct NormRunning {
  at::Tensor mean;  // undefined: it keeps nothing
  at::Tensor variance;
  double momentum = 0;
  double eps = 0;
};

// What this pass tells the others of its samples, and what it tells if it has none. On a GPU nobody
// waits for it.
at::Tensor own_statistics(const NormPass& pass);
at::Tensor no_statistics(const NormPass& pass);

// Combines the rows of all passes, which have more than one value of a channel, and updates the
// running statistics.
void set_statistics(NormPass& pass, const NormRows& rows, const NormRunning& running);
// Mean 0 and variance 1.
void set_no_statistics(NormPass& pass);

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
// the sums over all passes that share the statistics; `count` is how many values they add up.
at::Tensor input_gradient(const NormPass& pass, const at::Tensor& dy, const NormSums& all,
                          double count);

// Copies rows of the host to the device of `like`, in its type. The host does not wait.
at::Tensor uploaded(const at::Tensor& rows, const at::Tensor& like);

}  // namespace lockstep::replica
