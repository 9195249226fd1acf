// The models of `lockstep train`. On a GPU nothing of forward or backward waits for the host or copies from it, so that a
// CUDA graph can hold a step.
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

namespace lockstep::models {

// From samples to logits, one row of classes for each target.
class Net : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

struct ModelOptions {
  std::string name = "mlp";       // mlp, cnn, resnet18, gpt
  std::string gpt_size = "tiny";  // tiny, small, medium, gpt2
  double dropout = -1;            // below 0: the model's own (cnn 0.25, gpt 0.1)
  std::int64_t vocabulary = 0;    // gpt: at least the data's; 0: the data's
};

// Fresh values from LibTorch's generator. BadInput when the model cannot read such data.
std::shared_ptr<Net> make(const ModelOptions& options, const DataShape& shape);

std::shared_ptr<Net> make_mlp(const DataShape& shape, std::int64_t width = 2048);
std::shared_ptr<Net> make_cnn(const DataShape& shape, double dropout);
std::shared_ptr<Net> make_resnet18(const DataShape& shape);
std::shared_ptr<Net> make_gpt(const DataShape& shape, const ModelOptions& options);

// One row for each target of a batch, float32 also where the model has computed in a half type.
torch::Tensor logits(Net& net, const Batch& batch);

// The mean cross entropy of a batch.
torch::Tensor loss(Net& net, const Batch& batch);

}  // namespace lockstep::models
