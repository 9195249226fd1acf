#include "torch/device/device.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

namespace lockstep::device {

Device of(const torch::Tensor& tensor) {
  if (!tensor.is_cuda()) return {};
  return {DeviceKind::kCuda, tensor.device().index()};
}

bool known(const torch::Device& device) {
  return device.is_cpu() || device.is_cuda();
}

// LibTorch's memory, and not the engine's arena: NCCL wants the buffers of one call to be registered with it on all workers
// or on none, and large gradients, which stay where backward made them, are in LibTorch's memory.
torch::Tensor memory(Device device, std::size_t bytes) {
  if (device.kind == DeviceKind::kCpu) return {};
  const auto options = torch::TensorOptions().dtype(torch::kUInt8).device(torch::Device(device));
  try {
    return torch::zeros({static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1))}, options);
  } catch (const c10::OutOfMemoryError&) {
    throw Unavailable(
        fmt::format("{} has no {} MB left for the model, its gradients and the optimizer's state",
                    device.text(), bytes / 1'000'000));
  }
}

std::unique_ptr<StreamScope> make_stream_scope(Device device) {
  return device.kind == DeviceKind::kCpu ? nullptr : std::make_unique<StreamScope>(device);
}

}  // namespace lockstep::device
