#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/grad_scaler.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "torch/optim/impl.h"
#include "torch/replica/tensors.h"

namespace lockstep {
namespace {

void check(bool good, const char* option, double value, const char* range) {
  if (!good)
    throw BadInput(fmt::format("{} of a GradScaler is {:g}; it must be {}", option, value, range));
}

const GradScalerOptions& checked(const GradScalerOptions& options) {
  const auto scale = static_cast<float>(options.init_scale);
  check(scale > 0 && std::isfinite(scale), "init_scale", options.init_scale,
        "above 0, and finite in float32");
  check(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor",
        options.growth_factor, "above 1 and finite");
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
        options.backoff_factor, "above 0 and below 1");
  check(options.growth_interval > 0, "growth_interval",
        static_cast<double>(options.growth_interval), "1 or more");
  return options;
}

// PyTorch's rule. It keeps the scale in float32, and multiplies in float64.
GradScaler::State next(const GradScaler::State& now, const GradScalerOptions& options,
                       bool overflowed) {
  if (overflowed) return {static_cast<float>(now.scale * options.backoff_factor), 0};
  if (now.growth_tracker + 1 < options.growth_interval) return {now.scale, now.growth_tracker + 1};
  const auto grown = static_cast<float>(now.scale * options.growth_factor);
  return {std::isfinite(grown) ? grown : now.scale, 0};
}

void refuse_float64(const torch::Tensor& tensor, const char* what) {
  if (tensor.scalar_type() != torch::kFloat64) return;
  throw BadInput(fmt::format(
      "a GradScaler is for losses and gradients in float32 and half types, and {} is float64: "
      "train without it",
      what));
}

// As in PyTorch, where "no inf checks were recorded": nothing says whether the scale is too large.
void require_gradients(bool has_some) {
  if (has_some) return;
  throw BadInput(
      "step() of a GradScaler has found no gradients: call scale(loss).backward() before it");
}

bool has_gradients(const std::vector<torch::Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const torch::Tensor& one) { return one.grad().defined(); });
}

// The gradients of every worker are averages already. So all of them find the same.
bool unscale_gradients(const std::vector<torch::Tensor>& parameters, double scale) {
  const torch::NoGradGuard no_grad;
  const auto inverse = static_cast<float>(1 / scale);
  bool finite = true;
  for (const torch::Tensor& parameter : parameters) {
    const torch::Tensor& grad = parameter.grad();
    if (!grad.defined()) continue;
    finite = finite && torch::isfinite(grad).all().item<bool>();
    grad.mul_(inverse);
  }
  return finite;
}

std::vector<torch::Tensor> parameters_of(const optim::Trained& trained) {
  std::vector<torch::Tensor> all;
  for (std::size_t entry = 0; entry < trained.groups.entries(); ++entry)
    all.push_back(trained.parameter(entry));
  return all;
}

std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(checked(options)),
      state_{options.enabled ? static_cast<float>(options.init_scale) : 1, 0} {}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  if (!options_.enabled) return loss;
  if (!loss.defined() || !loss.is_floating_point())
    throw BadInput("scale() of a GradScaler wants a loss: a tensor of a floating-point type");
  refuse_float64(loss, "the loss");
  // A tensor, as in PyTorch: a loss of a half type becomes float32.
  return loss * torch::full({}, state_.scale, loss.options().dtype(torch::kFloat32));
}

void GradScaler::unscale(const void* optimizer, const std::vector<torch::Tensor>& parameters) {
  if (seen_.contains(optimizer)) {
    throw BadInput(
        seen_[optimizer].stepped
            ? "unscale() comes after step() of the same optimizer: call it before, or update() "
              "first"
            : "unscale() was called twice for an optimizer: call update() in between");
  }
  for (const torch::Tensor& parameter : parameters) {
    refuse_float64(parameter, "a parameter");
    if (parameter.scalar_type() != torch::kFloat16) continue;
    throw BadInput(
        "unscale() would divide float16 gradients, and small ones would vanish: leave it out, for "
        "step() of lockstep::optim divides in float32");
  }
  seen_[optimizer] = {!unscale_gradients(parameters, state_.scale), false};
}

namespace {

void refuse_feedback(const optim::Trained& trained) {
  const auto& encoding = trained.model->parts().encoding;
  if (!encoding || !encoding->keeps_state()) return;
  throw BadInput(fmt::format(
      "a scaler, and a model whose codec {} has error feedback: it would keep what has overflowed; "
      "leave one of them out, or choose the codec bf16, fp16 or int8:plain",
      encoding->codec().name()));
}

}  // namespace

void GradScaler::unscale(optim::Optimizer& optimizer) {
  if (options_.enabled) refuse_feedback(optim::inside(optimizer).trained);
  if (options_.enabled) unscale(&optimizer, parameters_of(optim::inside(optimizer).trained));
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (options_.enabled) unscale(&optimizer, parameters_of(optimizer));
}

const GradScaler::Seen* GradScaler::before_step(const void* optimizer) const {
  const auto found = seen_.find(optimizer);
  if (found == seen_.end()) return nullptr;
  if (found->second.stepped)
    throw BadInput("step() was called twice for an optimizer: call update() in between");
  return &found->second;
}

bool GradScaler::end_step(const void* optimizer, bool overflowed) {
  seen_[optimizer] = {overflowed, true};
  return !overflowed;
}

bool GradScaler::step(optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  optim::Optimizer::Impl& inside = optim::inside(optimizer);
  refuse_feedback(inside.trained);
  const auto parameters = parameters_of(inside.trained);
  const Seen* const seen = before_step(&optimizer);
  for (const torch::Tensor& parameter : parameters) refuse_float64(parameter, "a parameter");
  // A replica may have zeros in param.grad before the first pass.
  require_gradients(inside.trained.model->identity().passes > 0 && has_gradients(parameters));
  if (seen != nullptr) {
    if (!seen->overflowed) optimizer.step();
    return end_step(&optimizer, seen->overflowed);
  }
  return end_step(&optimizer, !inside.step(state_.scale));
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (options_.enabled) require_gradients(has_gradients(parameters_of(optimizer)));
  if (options_.enabled && before_step(&optimizer) == nullptr) unscale(optimizer);
  const bool overflowed = options_.enabled && seen_[&optimizer].overflowed;
  if (!overflowed) optimizer.step();
  return end_step(&optimizer, overflowed);
}

void GradScaler::update_after(bool overflowed) {
  seen_.clear();
  if (options_.enabled) state_ = next(state_, options_, overflowed);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (seen_.empty()) {
    throw BadInput(
        "update() of a GradScaler comes after its step(): it has seen no optimizer since the last "
        "update()");
  }
  bool overflowed = false;
  for (const auto& [optimizer, seen] : seen_) overflowed = overflowed || seen.overflowed;
  update_after(overflowed);
}

void GradScaler::update(double new_scale) {
  load_state({new_scale, state_.growth_tracker});
}

void GradScaler::load_state(const State& state) {
  if (!options_.enabled) return;
  const auto scale = static_cast<float>(state.scale);
  check(scale > 0 && std::isfinite(scale), "the scale", state.scale,
        "above 0, and finite in float32");
  check(state.growth_tracker >= 0, "the growth tracker", static_cast<double>(state.growth_tracker),
        "0 or more");
  seen_.clear();
  state_ = {scale, state.growth_tracker};
}

std::string to_string(const GradScalerOptions& options) {
  return fmt::format("init {} growth {} backoff {} interval {}", options.init_scale,
                     options.growth_factor, options.backoff_factor, options.growth_interval);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const GradScaler& scaler) {
  archive.write("scale", c10::IValue(scaler.state().scale));
  archive.write("growth_tracker", c10::IValue(scaler.state().growth_tracker));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           GradScaler& scaler) {
  c10::IValue scale;
  c10::IValue tracker;
  if (!archive.try_read("scale", scale) || !archive.try_read("growth_tracker", tracker))
    throw BadInput("the file holds no GradScaler");
  scaler.load_state({scale.toDouble(), tracker.toInt()});
  return archive;
}

}  // namespace lockstep
