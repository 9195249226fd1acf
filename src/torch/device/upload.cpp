#include "torch/device/upload.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>

namespace lockstep::device {
namespace {

void wait_until_made(const torch::Tensor& tensor, Deadline deadline) {
  const Device device = of(tensor);
  const CurrentDevice current(device);
  Event made;
  made.record(current_stream(device));
  made.wait(deadline);
}

}  // namespace

Batch ready_to_move(const Batch& batch, bool other_thread, Deadline deadline) {
  Batch ready = batch;
  for (torch::Tensor* const tensor : {&ready.data, &ready.target}) {
    if (!tensor->defined()) continue;
    if (!tensor->is_cuda()) {
      *tensor = tensor->is_pinned() ? *tensor : tensor->pin_memory();
    } else if (other_thread) {
      wait_until_made(*tensor, deadline);
    }
  }
  return ready;
}

// The copy is allocated on the side stream, so it waits for nothing on the current one. record_stream() tells LibTorch that
// the current stream reads it: LibTorch gives the memory out again only after that.
Batch Upload::move(const Batch& batch) {
  Batch moved{batch.data, batch.target, batch.samples};
  for (torch::Tensor* tensor : {&moved.data, &moved.target}) {
    if (!tensor->defined()) continue;
    const torch::Tensor from = *tensor;
    const c10::Stream reader =
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(torch::Device(device_));
    if (from.is_cuda()) {  // a loader thread has made it, on its own stream
      from.record_stream(reader);
      continue;
    }
    const SideStream::Scope scope(side_, SideStream::After::kGoesOn);
    *tensor = torch::empty_like(from, from.options().device(torch::Device(device_)));
    tensor->copy_(from, /*non_blocking=*/true);
    tensor->record_stream(reader);
    arrived_.record(current_stream(device_));
  }
  return moved;
}

std::optional<Upload> upload_to(Device device) {
  if (device.kind == DeviceKind::kCpu) return std::nullopt;
  return std::optional<Upload>(std::in_place, device);
}

void Upload::arrive() {
  arrived_.precede(current_stream(device_));
}

// Each copy has pinned memory of its own, which LibTorch takes back when the copy is done. So the next table can be written
// while this one is under way.
void SmallTable::set(const std::vector<std::byte>& bytes) {
  if (memory_.defined() && bytes == bytes_) return;
  const auto size = static_cast<std::int64_t>(bytes.size());
  const auto options = torch::TensorOptions().dtype(torch::kUInt8);
  if (!memory_.defined() || memory_.numel() != size)
    memory_ = torch::empty({size}, options.device(torch::Device(device_)));
  const torch::Tensor staging = torch::empty({size}, options.pinned_memory(true));
  std::memcpy(staging.data_ptr(), bytes.data(), bytes.size());
  memory_.copy_(staging, /*non_blocking=*/true);
  bytes_ = bytes;
}

}  // namespace lockstep::device
