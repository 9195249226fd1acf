#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <torch/version.h>

#include "torch/replica/tensors.h"
#include "torch/step/autocast_state.h"

namespace lockstep {
namespace {

namespace autocast = at::autocast;

// Since 2.4 LibTorch's functions take the device; before there was a function for each device.
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

torch::DeviceType checked(torch::DeviceType device, torch::ScalarType dtype) {
  if (device != torch::kCPU && device != torch::kCUDA) {
    throw BadInput(fmt::format("Autocast is for the CPU or CUDA, not for {}",
                               c10::DeviceTypeName(device, /*lower_case=*/true)));
  }
  if (!replica::is_half(dtype)) {
    throw BadInput(
        fmt::format("Autocast computes in bfloat16 or float16, not in {}", c10::toString(dtype)));
  }
  return device;
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

AutocastState AutocastState::of(torch::DeviceType device) {
  return {device,
          autocast_dtype(device),
          {autocast_enabled(device), autocast::is_autocast_cache_enabled()}};
}

Autocast::~Autocast() {
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  enable_autocast(device_, enabled_before_);
  set_dtype_of_autocast(device_, dtype_before_);
  autocast::set_autocast_cache_enabled(caches_before_);
}

}  // namespace lockstep
