#include "torch/device/device.h"

namespace lockstep::device {

Device of(const torch::Tensor& tensor) {
  if (!tensor.is_cuda()) return {};
  return {DeviceKind::kCuda, tensor.device().index()};
}

bool known(const torch::Device& device) {
  return device.is_cpu() || device.is_cuda();
}

std::unique_ptr<StreamScope> make_stream_scope(Device device) {
  return device.kind == DeviceKind::kCpu ? nullptr : std::make_unique<StreamScope>(device);
}

}  // namespace lockstep::device
