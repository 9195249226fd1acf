#include "torch/replica/buffer_sync.h"

#include "torch/device/device.h"

namespace lockstep::replica {
namespace {

std::size_t aligned_bytes(const torch::Tensor& buffer) {
  constexpr std::size_t kAlignment = 64;
  return (buffer.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t total_bytes(const std::vector<NamedTensor>& buffers) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : buffers) bytes += aligned_bytes(tensor);
  return bytes;
}

// The buffers become views of one memory of the GPU, which is broadcast as it is.
class DeviceBufferSync : public BufferSync {
 public:
  DeviceBufferSync(Comm& comm, const std::vector<NamedTensor>& buffers, Device device);

  void start(Comm& comm, const control::Presence& presence) override;
  void finish(Comm& comm, const control::Presence& presence) override;
  const FlatMemory* memory() const override { return &memory_; }

 private:
  FlatMemory memory_;
  Work work_;
};

DeviceBufferSync::DeviceBufferSync(Comm& comm, const std::vector<NamedTensor>& buffers,
                                   Device device)
    : memory_(comm, total_bytes(buffers), Copies::kPerWorker, device) {
  torch::NoGradGuard no_grad;
  plan::Entry next;
  for (const auto& [name, tensor] : buffers) {
    torch::Tensor buffer = tensor;
    const torch::Tensor view = memory_.view(next, buffer);
    view.copy_(buffer);
    buffer.set_data(view);
    next.offset += aligned_bytes(buffer);
  }
}

void DeviceBufferSync::start(Comm& comm, const control::Presence& presence) {
  if (comm.size() == 1) return;
  work_ = comm.broadcast({memory_.data(), memory_.bytes(), DType::kUInt8, memory_.device(),
                          device::current_stream(memory_.device())},
                         presence.first);
}

void DeviceBufferSync::finish(Comm& comm, const control::Presence& /*presence*/) {
  if (comm.size() > 1) work_.wait_on(device::current_stream(memory_.device()));
}

}  // namespace

std::unique_ptr<BufferSync> make_device_buffer_sync(Comm& comm,
                                                    const std::vector<NamedTensor>& buffers,
                                                    Device device) {
  return std::make_unique<DeviceBufferSync>(comm, buffers, device);
}

}  // namespace lockstep::replica
