#include <fmt/format.h>
#include <lockstep/errors.h>
#include <torch/version.h>

#include <array>
#include <cmath>

#include "torch/models/gpu_kernels.h"
#include "torch/models/models.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

constexpr double kGptDropout = 0.1;
constexpr double kSpread = 0.02;  // of GPT-2's initial weights

struct Size {
  const char* name;
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
};
constexpr std::array<Size, 4> kSizes{{
    {"tiny", 2, 64, 2},
    {"small", 4, 128, 4},
    {"medium", 6, 384, 6},
    {"gpt2", 12, 768, 12},
}};

const Size& size_named(const std::string& name) {
  for (const Size& size : kSizes) {
    if (name == size.name) return size;
  }
  throw BadInput(
      fmt::format("unknown size {} of gpt; there are tiny, small, medium and gpt2", name));
}

// Causal self-attention and a feed-forward layer, each after a normalisation.
class Block : public nn::Module {
 public:
  Block(const Size& size, double dropout) : heads_(size.heads), dropout_(dropout) {
    const std::int64_t width = size.width;
    norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    attend_ = register_module("attend", nn::Linear(width, 3 * width));
    project_ = register_module("project", nn::Linear(width, width));
    norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    widen_ = register_module("widen", nn::Linear(width, 4 * width));
    narrow_ = register_module("narrow", nn::Linear(4 * width, width));
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& future) {
    x = x + drop(attention(norm1_(x), future));
    return x + drop(through(narrow_, torch::gelu(through(widen_, norm2_(x)), "tanh")));
  }
  std::array<nn::Linear, 2> into_residual() { return {project_, narrow_}; }

 private:
  torch::Tensor drop(const torch::Tensor& x) { return torch::dropout(x, dropout_, is_training()); }
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& future) {
    const std::int64_t batch = x.size(0);
    const std::int64_t length = x.size(1);
    const std::int64_t width = x.size(2);
    const auto parts =
        through(attend_, x).view({batch, length, 3, heads_, width / heads_}).unbind(2);
    const auto by_head = [&](int part) {
      return parts[static_cast<std::size_t>(part)].transpose(1, 2);
    };
    const torch::Tensor mixed = mix(by_head(0), by_head(1), by_head(2), future);
    return through(project_, mixed.transpose(1, 2).reshape({batch, length, width}));
  }
  // For each token, the mean of the values up to it, weighted by how well their keys fit its query. Without a mask one
  // fused kernel does it.
  torch::Tensor mix(const torch::Tensor& query, const torch::Tensor& key,
                    const torch::Tensor& value, const torch::Tensor& future) {
#if TORCH_VERSION_MAJOR >= 2
    if (!future.defined()) {
      return at::scaled_dot_product_attention(query, key, value, {}, is_training() ? dropout_ : 0,
                                              /*is_causal=*/true);
    }
#endif
    const double scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));
    torch::Tensor weights = query.matmul(key.transpose(-2, -1)) * scale;
    weights = drop(torch::softmax(weights.masked_fill(future, -INFINITY), -1));
    return weights.matmul(value);
  }

  std::int64_t heads_;
  double dropout_;
  nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  nn::Linear attend_{nullptr}, project_{nullptr}, widen_{nullptr}, narrow_{nullptr};
};

// The token embedding is also the output layer.
class Gpt : public Net {
 public:
  Gpt(const Size& size, std::int64_t vocabulary, std::int64_t context, double dropout)
      : Net("gpt"), dropout_(dropout) {
    tokens_ = register_module("tokens", nn::Embedding(vocabulary, size.width));
    places_ = register_module("places", nn::Embedding(context, size.width));
    for (std::int64_t i = 0; i < size.layers; ++i) {
      blocks_.push_back(
          register_module(fmt::format("block{}", i), std::make_shared<Block>(size, dropout)));
    }
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({size.width})));
    initialise(size);
  }
  torch::Tensor forward(torch::Tensor x) override {
    const std::int64_t length = x.size(1);
    const torch::Tensor place = torch::arange(length, x.options().dtype(torch::kInt64));
    torch::Tensor future;
    if (!has_fused_attention(x))
      future = torch::ones({length, length}, x.options().dtype(torch::kBool)).triu(1);
    torch::Tensor y = torch::dropout(tokens_(x) + places_(place), dropout_, is_training());
    for (auto& block : blocks_) y = block->forward(y, future);
    return torch::linear(norm_(y), tokens_->weight);
  }

 private:
  void initialise(const Size& size) {
    torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      torch::Tensor& value = item.value();
      if (value.dim() > 1)
        value.normal_(0, kSpread);
      else if (item.key().ends_with("bias"))
        value.zero_();
    }
    const double residual = kSpread / std::sqrt(2.0 * static_cast<double>(size.layers));
    for (auto& block : blocks_) {
      for (auto& layer : block->into_residual()) layer->weight.normal_(0, residual);
    }
  }

  double dropout_;
  nn::Embedding tokens_{nullptr}, places_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::LayerNorm norm_{nullptr};
};

}  // namespace

std::shared_ptr<Net> make_gpt(const DataShape& shape, const ModelOptions& options) {
  if (!shape.is_text) throw BadInput("gpt reads text: give --data a text file");
  if (options.vocabulary != 0 && options.vocabulary < shape.classes) {
    throw BadInput(fmt::format("a vocabulary of {} is smaller than the text's {}",
                               options.vocabulary, shape.classes));
  }
  const std::int64_t vocabulary = std::max(options.vocabulary, shape.classes);
  return std::make_shared<Gpt>(size_named(options.gpt_size), vocabulary, shape.sample[0],
                               options.dropout < 0 ? kGptDropout : options.dropout);
}

}  // namespace lockstep::models
