#include <fmt/format.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <set>

#include "torch/replica/tensors.h"

namespace lockstep {
namespace {

template <typename... Kinds>
bool is_one_of(const torch::nn::Module& module) {
  return ((module.as<Kinds>() != nullptr) || ...);
}

// Layers whose weight and bias Autocast casts to a half type.
bool is_cast(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_one_of<LinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
                   ConvTranspose2dImpl, ConvTranspose3dImpl>(module);
}

}  // namespace

// A parameter that some other layer uses as well must stay float32. `elsewhere` collects those, and then every parameter
// that was named, so that a shared one is named once.
std::vector<std::string> weights_to_hold(const torch::nn::Module& module) {
  std::set<const c10::TensorImpl*> elsewhere;
  const auto look_at = [&](const torch::nn::Module& part) {
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      if (!is_cast(part) || (item.key() != "weight" && item.key() != "bias"))
        elsewhere.insert(item.value().unsafeGetTensorImpl());
    }
  };
  look_at(module);
  for (const auto& part : module.modules(/*include_self=*/false)) look_at(*part);
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& parameter = item.value();
    if (parameter.scalar_type() == torch::kFloat32 && parameter.requires_grad() &&
        elsewhere.insert(parameter.unsafeGetTensorImpl()).second)
      names.push_back(item.key());
  }
  return names;
}

std::size_t hold_weights(torch::nn::Module& module, torch::ScalarType dtype) {
  if (!replica::is_half(dtype)) {
    throw BadInput(fmt::format("hold_weights() holds them in bfloat16 or float16, not in {}",
                               c10::toString(dtype)));
  }
  auto parameters = module.named_parameters();
  const std::vector<std::string> names = weights_to_hold(module);
  const torch::NoGradGuard no_grad;
  for (const std::string& name : names) {
    torch::Tensor& parameter = parameters[name];
    parameter.set_data(parameter.to(dtype));
  }
  return names.size();
}

}  // namespace lockstep
