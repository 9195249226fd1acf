#include "torch/device/device.h"

namespace lockstep::device {

Device of(const torch::Tensor& tensor) {
  if (!tensor.is_cuda()) return {};
  return {DeviceKind::kCuda, tensor.device().index()};
}

}  // namespace lockstep::device
