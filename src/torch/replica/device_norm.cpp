#include "torch/replica/device_norm.h"

#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

namespace lockstep::replica {
namespace {

at::Tensor deviation_inverse(const NormPass& pass) {
  return pass.variance.add(pass.eps).rsqrt();
}

// One value per channel as a tensor that broadcasts over a batch.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

// The kernels of LibTorch's own SyncBatchNorm, which Python alone calls. They take half types.
namespace fused {

at::Tensor normalized(const NormPass& pass, const at::Tensor& bias) {
  return at::batch_norm_elemt(pass.input, pass.weight, bias, pass.mean, deviation_inverse(pass),
                              pass.eps);
}

NormSums own_sums(const NormPass& pass, const at::Tensor& dy) {
  const at::Tensor inverse = deviation_inverse(pass);
  const auto sums =
      at::batch_norm_backward_reduce(dy.to(pass.input.scalar_type()), pass.input, pass.mean,
                                     inverse, pass.weight, /*input_g=*/true, /*weight_g=*/false,
                                     /*bias_g=*/false);
  return {std::get<0>(sums), std::get<1>(sums) * inverse};
}

at::Tensor input_gradient(const NormPass& pass, const at::Tensor& dy, const NormSums& all,
                          double count) {
  const at::Tensor inverse = deviation_inverse(pass);
  // The kernel adds up counts of 32 bits.
  std::vector<std::int32_t> counts;
  for (double left = count; left > 0; left -= counts.back())
    counts.push_back(static_cast<std::int32_t>(
        std::min<double>(left, std::numeric_limits<std::int32_t>::max())));
  return at::batch_norm_backward_elemt(dy.to(pass.input.scalar_type()), pass.input, pass.mean,
                                       inverse, pass.weight, all.dy.to(inverse.options()),
                                       all.dy_xhat.to(inverse.options()) / inverse,
                                       at::tensor(counts, inverse.options().dtype(at::kInt)));
}

}  // namespace fused

}  // namespace

at::ScalarType computed_in(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor mean_and_variance(const at::Tensor& input) {
  const at::Tensor x = input.is_cuda() ? input : input.to(computed_in(input));
  const auto [mean, variance] = at::batch_norm_update_stats(x, {}, {}, 0);
  return at::stack({mean, variance});
}

// With given statistics as running ones, a layer is in eval().
at::Tensor normalized(const NormPass& pass, const at::Tensor& bias) {
  const at::Tensor& input = pass.input;
  if (input.numel() == 0) return at::empty_like(input);
  if (input.is_cuda()) return fused::normalized(pass, bias);
  return std::get<0>(at::native_batch_norm(input.to(computed_in(input)), pass.weight, bias,
                                           pass.mean, pass.variance, false, 0, pass.eps))
      .to(input.scalar_type());
}

NormSums own_sums(const NormPass& pass, const at::Tensor& dy) {
  const at::Tensor& input = pass.input;
  if (input.numel() == 0) return {at::zeros_like(pass.mean), at::zeros_like(pass.mean)};
  if (input.is_cuda()) return fused::own_sums(pass, dy);
  const auto type = computed_in(input);
  const auto sums =
      at::native_batch_norm_backward(dy.to(type), input.to(type), pass.weight, pass.mean,
                                     pass.variance, {}, {}, false, pass.eps, {false, true, true});
  return {std::get<2>(sums), std::get<1>(sums)};
}

at::Tensor input_gradient(const NormPass& pass, const at::Tensor& dy, const NormSums& all,
                          double count) {
  const at::Tensor& input = pass.input;
  if (input.numel() == 0) return at::empty_like(input);
  if (input.is_cuda()) return fused::input_gradient(pass, dy, all, count);
  const at::Tensor inverse = pass.variance.to(at::kDouble).add(pass.eps).rsqrt();
  const at::Tensor slope = all.dy_xhat / count * inverse;
  const at::Tensor scale = pass.weight.defined() ? pass.weight.to(at::kDouble) * inverse : inverse;
  const at::Tensor x = input.to(computed_in(input));
  at::Tensor dx = dy.to(x.scalar_type()) - per_channel(all.dy / count, x);
  dx.addcmul_(x - per_channel(pass.mean, x), per_channel(slope, x), -1);
  return dx.mul_(per_channel(scale, x)).to(input.scalar_type());
}

}  // namespace lockstep::replica
