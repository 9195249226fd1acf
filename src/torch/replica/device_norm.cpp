#include "torch/replica/device_norm.h"

#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_gather_stats_with_counts.h>
#include <ATen/ops/batch_norm_stats.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

namespace lockstep::replica {
namespace {

// bfloat16 and float16 are computed in float32.
at::ScalarType computed_in(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::TensorOptions options_of(const NormPass& pass) {
  return pass.input.options().dtype(computed_in(pass.input)).requires_grad(false);
}

// Rows are float64 on a CPU, where that costs nothing.
at::TensorOptions row_options_of(const NormPass& pass) {
  return pass.input.is_cuda() ? options_of(pass) : options_of(pass).dtype(at::kDouble);
}

// One value per channel as a tensor that broadcasts over a batch.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

void follow(const at::Tensor& running, const at::Tensor& now, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
}

// A row is [mean, sum of squared deviations from it].
namespace on_cpu {

at::Tensor own_statistics(const NormPass& pass) {
  const auto [mean, variance] =
      at::batch_norm_update_stats(pass.input.to(computed_in(pass.input)), {}, {}, 0);
  const double count =
      static_cast<double>(pass.input.numel()) / static_cast<double>(pass.input.size(1));
  return at::cat({mean.to(at::kDouble), variance.to(at::kDouble) * count});
}

// The order of the additions is that of the passes, for every one of them.
void set_statistics(NormPass& pass, const NormRows& rows, const NormRunning& running) {
  const std::int64_t channels = rows.all.size(1) / 2;
  const at::Tensor counts = at::tensor(rows.counts, at::kDouble).unsqueeze(1);
  const at::Tensor means = rows.all.slice(1, 0, channels);
  const double count = std::accumulate(rows.counts.begin(), rows.counts.end(), 0.0);
  const at::Tensor mean = (means * counts).sum(0) / count;
  const at::Tensor squares =
      (rows.all.slice(1, channels) + counts * (means - mean).square()).sum(0);
  follow(running.mean, mean, running.momentum);
  follow(running.variance, squares / (count - 1), running.momentum);
  pass.mean = mean.to(options_of(pass));
  pass.variance = (squares / count).to(options_of(pass));
}

// With given statistics as running ones, a layer is in eval().
at::Tensor normalized(const NormPass& pass, const at::Tensor& bias) {
  return std::get<0>(at::native_batch_norm(pass.input.to(computed_in(pass.input)), pass.weight,
                                           bias, pass.mean, pass.variance, false, 0, pass.eps))
      .to(pass.input.scalar_type());
}

NormSums own_sums(const NormPass& pass, const at::Tensor& dy) {
  const auto type = computed_in(pass.input);
  const auto sums =
      at::native_batch_norm_backward(dy.to(type), pass.input.to(type), pass.weight, pass.mean,
                                     pass.variance, {}, {}, false, pass.eps, {false, true, true});
  return {std::get<2>(sums).to(at::kDouble), std::get<1>(sums).to(at::kDouble)};
}

at::Tensor input_gradient(const NormPass& pass, const at::Tensor& dy, const NormSums& all,
                          double count) {
  const at::Tensor inverse = pass.variance.to(at::kDouble).add(pass.eps).rsqrt();
  const at::Tensor slope = all.dy_xhat / count * inverse;
  const at::Tensor scale = pass.weight.defined() ? pass.weight.to(at::kDouble) * inverse : inverse;
  const at::Tensor x = pass.input.to(computed_in(pass.input));
  at::Tensor dx = dy.to(x.scalar_type()) - per_channel(all.dy / count, x);
  dx.addcmul_(x - per_channel(pass.mean, x), per_channel(slope, x), -1);
  return dx.mul_(per_channel(scale, x)).to(pass.input.scalar_type());
}

}  // namespace on_cpu

// The kernels of PyTorch's SyncBatchNorm, which only its Python calls. They take half types. A row is
// [mean, inverse]. The host waits for nothing.
namespace on_gpu {

// As the input lies in memory, and of its type: a kernel may look at one of the two only.
at::Tensor as_input(const NormPass& pass, const at::Tensor& dy) {
  return dy.to(pass.input.scalar_type()).contiguous(pass.input.suggest_memory_format());
}

at::Tensor own_statistics(const NormPass& pass) {
  const auto [mean, inverse] = at::batch_norm_stats(pass.input, pass.eps);
  return at::cat({mean, inverse});
}

// The kernel divides by `inverse`, so rows of passes without samples are left out.
NormRows with_samples(const NormRows& rows) {
  NormRows left;
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < rows.counts.size(); ++i) {
    if (rows.counts[i] == 0) continue;
    left.counts.push_back(rows.counts[i]);
    all.push_back(rows.all[static_cast<std::int64_t>(i)]);
  }
  left.all = all.size() == rows.counts.size() ? rows.all : at::stack(all);
  return left;
}

void set_statistics(NormPass& pass, const NormRows& rows, const NormRunning& running) {
  const NormRows some = with_samples(rows);
  const std::int64_t channels = some.all.size(1) / 2;
  const at::Tensor counts = uploaded(at::tensor(some.counts, at::kDouble), some.all);
  // Its counts have the type of running statistics: not a half type.
  const bool follows =
      running.mean.defined() && running.mean.scalar_type() == some.all.scalar_type();
  std::tie(pass.mean, pass.inverse) = at::batch_norm_gather_stats_with_counts(
      some.all, some.all.slice(1, 0, channels), some.all.slice(1, channels),
      follows ? running.mean : at::Tensor(), follows ? running.variance : at::Tensor(),
      running.momentum, pass.eps, counts);
  if (follows) return;
  const double count = std::accumulate(some.counts.begin(), some.counts.end(), 0.0);
  follow(running.mean, pass.mean, running.momentum);
  follow(running.variance, (pass.inverse.pow(-2) - pass.eps) * (count / (count - 1)),
         running.momentum);
}

at::Tensor normalized(const NormPass& pass, const at::Tensor& bias) {
  return at::batch_norm_elemt(pass.input, pass.weight, bias, pass.mean, pass.inverse, pass.eps);
}

NormSums own_sums(const NormPass& pass, const at::Tensor& dy) {
  const auto sums = at::batch_norm_backward_reduce(
      as_input(pass, dy), pass.input, pass.mean, pass.inverse, pass.weight,
      /*input_g=*/true, /*weight_g=*/false, /*bias_g=*/false);
  return {std::get<0>(sums), std::get<1>(sums) * pass.inverse};
}

// The kernel adds up counts of 32 bits.
at::Tensor counts_of(double count, const at::TensorOptions& options) {
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<at::Tensor> parts;
  for (double left = count; left > 0; left -= kMost)
    parts.push_back(at::full({1}, std::min(left, kMost), options.dtype(at::kInt)));
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

at::Tensor input_gradient(const NormPass& pass, const at::Tensor& dy, const NormSums& all,
                          double count) {
  return at::batch_norm_backward_elemt(as_input(pass, dy), pass.input, pass.mean, pass.inverse,
                                       pass.weight, all.dy, all.dy_xhat / pass.inverse,
                                       counts_of(count, pass.mean.options()));
}

}  // namespace on_gpu

}  // namespace

at::Tensor own_statistics(const NormPass& pass) {
  return pass.input.is_cuda() ? on_gpu::own_statistics(pass) : on_cpu::own_statistics(pass);
}

at::Tensor no_statistics(const NormPass& pass) {
  return at::zeros({2 * pass.input.size(1)}, row_options_of(pass));
}

void set_statistics(NormPass& pass, const NormRows& rows, const NormRunning& running) {
  pass.input.is_cuda() ? on_gpu::set_statistics(pass, rows, running)
                       : on_cpu::set_statistics(pass, rows, running);
}

void set_no_statistics(NormPass& pass) {
  pass.mean = at::zeros({pass.input.size(1)}, options_of(pass));
  (pass.input.is_cuda() ? pass.inverse : pass.variance) =
      at::ones({pass.input.size(1)}, options_of(pass));
}

NormPass pass_of(const at::Tensor& input, const at::Tensor& weight, double eps) {
  NormPass pass;
  const auto format = input.suggest_memory_format();
  pass.input = input.is_cuda() ? input.contiguous(format) : input;
  if (weight.defined()) pass.weight = weight.to(computed_in(input));
  pass.eps = eps;
  return pass;
}

at::Tensor normalized(const NormPass& pass, const at::Tensor& bias) {
  if (pass.input.numel() == 0) return at::empty_like(pass.input);
  const at::Tensor added = bias.defined() ? bias.to(computed_in(pass.input)) : bias;
  return pass.input.is_cuda() ? on_gpu::normalized(pass, added) : on_cpu::normalized(pass, added);
}

NormSums own_sums(const NormPass& pass, const at::Tensor& dy) {
  if (pass.input.numel() == 0) {
    const at::Tensor none = at::zeros({pass.input.size(1)}, row_options_of(pass));
    return {none, none};
  }
  return pass.input.is_cuda() ? on_gpu::own_sums(pass, dy) : on_cpu::own_sums(pass, dy);
}

at::Tensor input_gradient(const NormPass& pass, const at::Tensor& dy, const NormSums& all,
                          double count) {
  if (pass.input.numel() == 0) return at::empty_like(pass.input);
  return pass.input.is_cuda() ? on_gpu::input_gradient(pass, dy, all, count)
                              : on_cpu::input_gradient(pass, dy, all, count);
}

at::Tensor uploaded(const at::Tensor& rows, const at::Tensor& like) {
  if (!like.is_cuda()) return rows.to(like.scalar_type());
  return rows.to(like.scalar_type()).pin_memory().to(like.device(), /*non_blocking=*/true);
}

}  // namespace lockstep::replica
