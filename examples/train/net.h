// The model and the data of both programs: plain LibTorch.
#pragma once

#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(784, 128));
    output = register_module("output", torch::nn::Linear(128, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::log_softmax(output(torch::relu(hidden(x))), 1);
  }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};
TORCH_MODULE(Net);

// 4,096 noisy pictures of ten classes.
class Pictures : public torch::data::datasets::Dataset<Pictures> {
 public:
  Pictures() {
    torch::manual_seed(1);
    target_ = torch::randint(10, {4096}, torch::kInt64);
    data_ = torch::randn({4096, 784}) + 0.2 * torch::randn({10, 784}).index_select(0, target_);
  }
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {data_[i], target_[i]};
  }
  decltype(std::declval<torch::data::datasets::MNIST>().size()) size() const override {
    return 4096;
  }

 private:
  torch::Tensor data_, target_;
};
