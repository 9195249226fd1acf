#include "torch/device/device.h"

namespace lockstep::device {

Device of(const torch::Tensor& tensor) {
  if (!tensor.is_cuda()) return {};
  return {DeviceKind::kCuda, tensor.device().index()};
}

bool known(const torch::Device& device) {
  return device.is_cpu() || device.is_cuda();
}

}  // namespace lockstep::device
