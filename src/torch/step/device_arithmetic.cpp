#include "torch/step/arithmetic.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "flat/cuda/gpus.h"

namespace lockstep::steps {
namespace {

// Where LibTorch allows TF32.
std::string tf32_in_use() {
  const auto& context = at::globalContext();
  return fmt::format("products {}, convolutions {}", context.allowTF32CuBLAS() ? "on" : "off",
                     context.allowTF32CuDNN() ? "on" : "off");
}

}  // namespace

bool changes_arithmetic_of(Device device, std::string_view variable) {
  if (device.kind == DeviceKind::kCpu) return false;
  if (variable.find("_LOG") != std::string_view::npos) return false;  // changes only what is logged
  static constexpr std::array<std::string_view, 7> kBeginnings = {
      "CUBLAS",       "CUDNN_",     "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32",
      "TORCH_CUDNN_", "TORCH_BLAS", "PYTORCH_TUNABLEOP_"};
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view beginning) { return variable.starts_with(beginning); });
}

std::map<std::string, std::string> device_properties(Device device) {
  if (device.kind == DeviceKind::kCpu) return {{"device", "cpu"}};
  return {{"device", "cuda " + cuda::gpus().model(device.index)}, {"tf32", tf32_in_use()}};
}

}  // namespace lockstep::steps
