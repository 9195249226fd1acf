// The models of `lockstep train`. On a GPU their forward and backward never wait for the host or copy from it, so a CUDA
// graph can hold a pass.
//
//   mlp        inputs-2048-2048-2048-classes, ReLU                      10.0M parameters on 784 → 10
//   cnn        two blocks of convolution, BatchNorm, ReLU, pooling; dropout; two linear layers
//   resnet18   as for ImageNet, with a first layer for 32×32 images     11.2M
//   gpt        a decoder-only transformer, sizes below                  124M at size gpt2 with 50,257 tokens
#pragma once

#include <lockstep/data.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace lockstep::models {

// From samples to logits, one row of classes for each target.
class Net : public torch::nn::Module {
 public:
  explicit Net(std::string name) : Module(std::move(name)) {}
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

struct ModelOptions {
  std::string name = "mlp";       // mlp, cnn, resnet18, gpt
  std::string gpt_size = "tiny";  // tiny, small, medium, gpt2
  double dropout = -1;            // below 0: the model's own (cnn 0.25, gpt 0.1)
  std::int64_t vocabulary = 0;    // gpt: at least the data's; 0: the data's
};

// Parameters are drawn from LibTorch's generator. BadInput if the model cannot read such data.
std::shared_ptr<Net> make(const ModelOptions& options, const DataShape& shape);

std::shared_ptr<Net> make_mlp(const DataShape& shape, std::int64_t width = 2048);
std::shared_ptr<Net> make_gpt(const DataShape& shape, const ModelOptions& options);

// One row of logits for each target of a batch: float32, also if the model computes in a half type.
torch::Tensor logits(Net& net, const Batch& batch);

// The mean cross entropy of a batch.
torch::Tensor loss(Net& net, const Batch& batch);

}  // namespace lockstep::models
