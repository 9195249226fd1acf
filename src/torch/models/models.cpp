#include "torch/models/models.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <functional>
#include <numeric>

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

constexpr double kCnnDropout = 0.25;

void want_images(const DataShape& shape, const char* model) {
  if (shape.is_text || shape.sample.size() != 3) {
    throw BadInput(fmt::format("{} reads images, and this data has none: use --model {}", model,
                               shape.is_text ? "gpt" : "mlp"));
  }
}

class Mlp : public Net {
 public:
  Mlp(std::int64_t inputs, std::int64_t width, std::int64_t classes) : Net("mlp") {
    layers_ = register_module("layers", nn::Sequential());
    std::int64_t from = inputs;
    for (int i = 0; i < 3; ++i) {
      layers_->push_back(nn::Linear(from, width));
      layers_->push_back(nn::ReLU(nn::ReLUOptions(true)));
      from = width;
    }
    layers_->push_back(nn::Linear(from, classes));
  }
  torch::Tensor forward(torch::Tensor x) override { return layers_->forward(x.flatten(1)); }

 private:
  nn::Sequential layers_{nullptr};
};

class Cnn : public Net {
 public:
  Cnn(const DataShape& shape, double dropout) : Net("cnn"), dropout_(dropout) {
    const std::int64_t height = shape.sample[1] / 4;
    const std::int64_t width = shape.sample[2] / 4;
    if (height < 1 || width < 1) throw BadInput("cnn wants images of at least 4×4 pixels");
    conv1_ = register_module("conv1", conv(shape.sample[0], 32));
    norm1_ = register_module("norm1", nn::BatchNorm2d(32));
    conv2_ = register_module("conv2", conv(32, 64));
    norm2_ = register_module("norm2", nn::BatchNorm2d(64));
    hidden_ = register_module("hidden", nn::Linear(64 * height * width, 128));
    output_ = register_module("output", nn::Linear(128, shape.classes));
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::max_pool2d(torch::relu(norm1_(conv1_(x))), 2);
    x = torch::max_pool2d(torch::relu(norm2_(conv2_(x))), 2);
    x = torch::dropout(x.flatten(1), dropout_, is_training());
    x = torch::dropout(torch::relu(hidden_(x)), dropout_, is_training());
    return output_(x);
  }

 private:
  static nn::Conv2d conv(std::int64_t from, std::int64_t to) {
    return nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
  }
  double dropout_;
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr};
  nn::Linear hidden_{nullptr}, output_{nullptr};
};

nn::Conv2d resnet_conv(std::int64_t from, std::int64_t to, std::int64_t kernel,
                       std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

class BasicBlock : public nn::Module {
 public:
  BasicBlock(std::int64_t from, std::int64_t to, std::int64_t stride) {
    conv1_ = register_module("conv1", resnet_conv(from, to, 3, stride));
    norm1_ = register_module("norm1", nn::BatchNorm2d(to));
    conv2_ = register_module("conv2", resnet_conv(to, to, 3, 1));
    norm2_ = register_module("norm2", nn::BatchNorm2d(to));
    if (stride != 1 || from != to) {
      shortcut_ = register_module(
          "shortcut", nn::Sequential(resnet_conv(from, to, 1, stride), nn::BatchNorm2d(to)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::relu(norm1_(conv1_(x)));
    y = norm2_(conv2_(y));
    return torch::relu(y + (shortcut_ ? shortcut_->forward(x) : x));
  }

 private:
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr};
  nn::Sequential shortcut_{nullptr};
};

class ResNet18 : public Net {
 public:
  explicit ResNet18(const DataShape& shape) : Net("resnet18") {
    conv_ = register_module("conv", resnet_conv(shape.sample[0], 64, 3, 1));
    norm_ = register_module("norm", nn::BatchNorm2d(64));
    std::int64_t width = 64;
    for (const std::int64_t to : {64, 128, 256, 512}) {
      for (int i = 0; i < 2; ++i) {
        const std::int64_t stride = i == 0 && to != 64 ? 2 : 1;
        blocks_.push_back(register_module(fmt::format("block{}", blocks_.size()),
                                          std::make_shared<BasicBlock>(width, to, stride)));
        width = to;
      }
    }
    output_ = register_module("output", nn::Linear(512, shape.classes));
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::relu(norm_(conv_(x)));
    for (auto& block : blocks_) x = block->forward(x);
    return output_(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

 private:
  nn::Conv2d conv_{nullptr};
  nn::BatchNorm2d norm_{nullptr};
  std::vector<std::shared_ptr<BasicBlock>> blocks_;
  nn::Linear output_{nullptr};
};

}  // namespace

std::shared_ptr<Net> make_mlp(const DataShape& shape, std::int64_t width) {
  if (shape.is_text) throw BadInput("mlp reads numbers, and this data is text: use --model gpt");
  const std::int64_t inputs = std::accumulate(shape.sample.begin(), shape.sample.end(),
                                              std::int64_t{1}, std::multiplies<>());
  return std::make_shared<Mlp>(inputs, width, shape.classes);
}

std::shared_ptr<Net> make(const ModelOptions& options, const DataShape& shape) {
  if (options.name == "mlp") return make_mlp(shape);
  if (options.name == "gpt") return make_gpt(shape, options);
  if (options.name == "cnn") {
    want_images(shape, "cnn");
    return std::make_shared<Cnn>(shape, options.dropout < 0 ? kCnnDropout : options.dropout);
  }
  if (options.name == "resnet18") {
    want_images(shape, "resnet18");
    return std::make_shared<ResNet18>(shape);
  }
  throw BadInput(
      fmt::format("unknown model {}; there are mlp, cnn, resnet18 and gpt", options.name));
}

torch::Tensor logits(Net& net, const Batch& batch) {
  const torch::Tensor rows = net.forward(batch.data).flatten(0, -2);
  return static_cast<std::size_t>(rows.element_size()) < sizeof(float) ? rows.to(torch::kFloat32)
                                                                       : rows;
}

torch::Tensor loss(Net& net, const Batch& batch) {
  return torch::nn::functional::cross_entropy(logits(net, batch), batch.target.flatten());
}

}  // namespace lockstep::models
