#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

#include <set>

namespace lockstep {
namespace {

namespace autocast = at::autocast;

// One function for each kind of device in older LibTorch, one for all in newer.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
bool autocast_enabled(torch::DeviceType device) {
  return autocast::is_autocast_enabled(device);
}
void enable_autocast(torch::DeviceType device, bool on) {
  autocast::set_autocast_enabled(device, on);
}
torch::ScalarType autocast_dtype(torch::DeviceType device) {
  return autocast::get_autocast_dtype(device);
}
void set_dtype_of_autocast(torch::DeviceType device, torch::ScalarType dtype) {
  autocast::set_autocast_dtype(device, dtype);
}
#else
bool autocast_enabled(torch::DeviceType device) {
  return device == torch::kCPU ? autocast::is_cpu_enabled() : autocast::is_enabled();
}
void enable_autocast(torch::DeviceType device, bool on) {
  device == torch::kCPU ? autocast::set_cpu_enabled(on) : autocast::set_enabled(on);
}
torch::ScalarType autocast_dtype(torch::DeviceType device) {
  return device == torch::kCPU ? autocast::get_autocast_cpu_dtype()
                               : autocast::get_autocast_gpu_dtype();
}
void set_dtype_of_autocast(torch::DeviceType device, torch::ScalarType dtype) {
  device == torch::kCPU ? autocast::set_autocast_cpu_dtype(dtype)
                        : autocast::set_autocast_gpu_dtype(dtype);
}
#endif

void check_type(torch::ScalarType dtype) {
  if (dtype == torch::kBFloat16 || dtype == torch::kFloat16) return;
  throw BadInput(
      fmt::format("Autocast computes in bfloat16 or float16, not in {}", c10::toString(dtype)));
}

torch::DeviceType checked(torch::DeviceType device, torch::ScalarType dtype) {
  if (device != torch::kCPU && device != torch::kCUDA) {
    throw BadInput(fmt::format("Autocast is for the CPU or CUDA, not for {}",
                               c10::DeviceTypeName(device, /*lower_case=*/true)));
  }
  check_type(dtype);
  return device;
}

template <typename... Kinds>
bool is_one_of(const torch::nn::Module& module) {
  return ((module.as<Kinds>() != nullptr) || ...);
}

// Layers all of whose parameters autocast casts.
bool is_cast(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_one_of<LinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
                   ConvTranspose2dImpl, ConvTranspose3dImpl>(module);
}

}  // namespace

Autocast::Autocast(torch::DeviceType device, torch::ScalarType dtype, AutocastOptions options)
    : device_(checked(device, dtype)),
      enabled_before_(autocast_enabled(device)),
      dtype_before_(autocast_dtype(device)),
      caches_before_(autocast::is_autocast_cache_enabled()) {
  try {
    set_dtype_of_autocast(device_, dtype);
  } catch (const c10::Error& error) {
    throw BadInput(fmt::format("this LibTorch has no Autocast to {} here: {}", c10::toString(dtype),
                               error.what_without_backtrace()));
  }
  autocast::increment_nesting();
  enable_autocast(device_, options.enabled);
  autocast::set_autocast_cache_enabled(options.cache_weights);
}

Autocast::~Autocast() {
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  enable_autocast(device_, enabled_before_);
  set_dtype_of_autocast(device_, dtype_before_);
  autocast::set_autocast_cache_enabled(caches_before_);
}

std::size_t hold_weights(torch::nn::Module& module, torch::ScalarType dtype) {
  check_type(dtype);
  const torch::NoGradGuard no_grad;
  std::set<const c10::TensorImpl*> elsewhere;
  const auto look_at = [&](const torch::nn::Module& part) {
    if (is_cast(part)) return;
    for (const torch::Tensor& parameter : part.parameters(/*recurse=*/false))
      elsewhere.insert(parameter.unsafeGetTensorImpl());
  };
  look_at(module);
  for (const auto& part : module.modules(/*include_self=*/false)) look_at(*part);
  std::size_t changed = 0;
  for (torch::Tensor& parameter : module.parameters()) {
    if (elsewhere.contains(parameter.unsafeGetTensorImpl()) ||
        parameter.scalar_type() != torch::kFloat32)
      continue;
    if (!parameter.is_cuda()) {
      throw BadInput(
          "hold_weights() is for modules on a GPU, where lockstep::optim keeps float32 masters: "
          "move the module there first");
    }
    parameter.set_data(parameter.to(dtype));
    ++changed;
  }
  return changed;
}

}  // namespace lockstep
