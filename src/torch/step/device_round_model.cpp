#include "torch/device/device.h"
#include "torch/replica/tensors.h"
#include "torch/step/round_model.h"

namespace lockstep::steps {
namespace {

// Copies from and to pinned memory are queued. LibTorch gives such memory away only when they are done, so a round may be broken off
// at any time.
class DeviceRoundModel : public RoundModel {
 public:
  DeviceRoundModel(replica::Replicated& model, std::chrono::milliseconds timeout);

  void wait() override;
  void show(const std::byte* weights, const std::vector<std::byte>& buffers) override;
  RoundGradient gradient() override;

 private:
  torch::Tensor weights_at(std::size_t entry) const;

  replica::Replicated& model_;
  std::chrono::milliseconds timeout_;
  torch::Tensor weights_, gradients_;  // pinned: bytes with the layout of the model
  std::vector<NamedTensor> buffers_;   // pinned: as the model's
  device::Event shown_;                // what show() has queued is done
};

torch::Tensor pinned(at::IntArrayRef sizes, c10::ScalarType type) {
  return torch::empty(sizes, torch::TensorOptions().dtype(type).pinned_memory(true));
}

DeviceRoundModel::DeviceRoundModel(replica::Replicated& model, std::chrono::milliseconds timeout)
    : model_(model), timeout_(timeout) {
  const auto bytes = static_cast<std::int64_t>(model.layout().bytes());
  weights_ = pinned({bytes}, torch::kUInt8);
  gradients_ = pinned({bytes}, torch::kUInt8);
  for (const auto& [name, tensor] : model.model().buffers)
    buffers_.push_back({name, pinned(tensor.sizes(), tensor.scalar_type())});
  counts_.reason = "asynchronous steps run without CUDA graphs";
}

torch::Tensor DeviceRoundModel::weights_at(std::size_t entry) const {
  const plan::Entry& at = model_.layout().entries()[entry];
  const torch::Tensor& like = model_.parts().parameter(entry);
  const torch::Tensor flat =
      weights_
          .narrow(0, static_cast<std::int64_t>(at.offset), static_cast<std::int64_t>(at.bytes()))
          .view(like.scalar_type());
  return like.is_non_overlapping_and_dense() ? flat.as_strided(like.sizes(), like.strides())
                                             : flat.view(like.sizes());
}

void DeviceRoundModel::wait() {
  device::Event done;
  done.record(device::current_stream(model_.device()));
  done.wait(Deadline::after(timeout_));
}

// A round that was broken off may have left copies under way.
void DeviceRoundModel::show(const std::byte* weights, const std::vector<std::byte>& buffers) {
  const torch::NoGradGuard no_grad;
  shown_.wait(Deadline::after(timeout_));
  weights_.copy_(tensor_at(const_cast<std::byte*>(weights), weights_));  // NOLINT: only read
  for (std::size_t entry = 0; entry < model_.layout().entries().size(); ++entry)
    model_.parts().parameter(entry).detach().copy_(weights_at(entry), /*non_blocking=*/true);
  replica::unpack(buffers, buffers_);
  const auto& theirs = model_.model().buffers;
  for (std::size_t i = 0; i < theirs.size(); ++i)
    theirs[i].tensor.data().copy_(buffers_[i].tensor, /*non_blocking=*/true);
  shown_.record(device::current_stream(model_.device()));
}

// Backward leaves gradients in tensors of their own; settle() of the bank puts them together.
RoundGradient DeviceRoundModel::gradient() {
  const torch::NoGradGuard no_grad;
  ++counts_.eager;
  model_.settle();
  model_.banks().in_use().settle();
  const replica::FlatMemory& flat = model_.averages();
  gradients_.copy_(flat.as_tensor(torch::kUInt8, 0, flat.bytes()), /*non_blocking=*/true);
  const auto& theirs = model_.model().buffers;
  for (std::size_t i = 0; i < theirs.size(); ++i)
    buffers_[i].tensor.copy_(theirs[i].tensor, /*non_blocking=*/true);
  wait();
  return {static_cast<const std::byte*>(gradients_.data_ptr()),
          static_cast<const std::byte*>(weights_.data_ptr()), replica::pack(buffers_)};
}

}  // namespace

std::unique_ptr<RoundModel> make_device_round_model(replica::Replicated& model,
                                                    std::chrono::milliseconds timeout) {
  return std::make_unique<DeviceRoundModel>(model, timeout);
}

}  // namespace lockstep::steps
