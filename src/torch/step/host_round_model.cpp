#include "torch/replica/tensors.h"
#include "torch/step/round_model.h"

namespace lockstep::steps {
namespace {

class HostRoundModel : public RoundModel {
 public:
  explicit HostRoundModel(replica::Replicated& model) : model_(model) {}

  void wait() override {}
  void show(const std::byte* weights, const std::vector<std::byte>& buffers) override;
  RoundGradient gradient() override;

 private:
  replica::Replicated& model_;
};

void HostRoundModel::show(const std::byte* weights, const std::vector<std::byte>& buffers) {
  const torch::NoGradGuard no_grad;
  const auto& entries = model_.layout().entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    // copy_() and not memcpy(): who looks at versions sees that the parameter was written to.
    const torch::Tensor to = model_.parts().parameter(entry).detach();
    std::byte* const from = const_cast<std::byte*>(weights) + entries[entry].offset;  // NOLINT
    to.copy_(tensor_at(from, to));
  }
  replica::unpack(buffers, model_.model().buffers);
}

RoundGradient HostRoundModel::gradient() {
  model_.settle();
  return {model_.averages().data(), model_.parts().parameters->seen().data(),
          replica::pack(model_.model().buffers)};
}

}  // namespace

torch::Tensor tensor_at(std::byte* first, const torch::Tensor& like) {
  const auto options = torch::TensorOptions().dtype(like.dtype());
  return like.is_non_overlapping_and_dense()
             ? torch::from_blob(first, like.sizes(), like.strides(), options)
             : torch::from_blob(first, like.sizes(), options);
}

std::unique_ptr<RoundModel> make_host_round_model(replica::Replicated& model) {
  return std::make_unique<HostRoundModel>(model);
}

}  // namespace lockstep::steps
