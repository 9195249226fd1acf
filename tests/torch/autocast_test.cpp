// Autocast on the CPU: LibTorch's switches are the same for CUDA.
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <torch/version.h>

#include <stdexcept>
#include <thread>

#include "tests/torch/nets.h"

namespace lockstep::testing {
namespace {

// What a matrix product gives here and now.
torch::ScalarType product_type() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

TEST(AutocastGuard, ComputesInTheHalfTypeAndLeavesGradientsInFloat32) {
  auto net = seeded<TwoLayers>(1);
  const auto x = samples(2, {4, 8});
  torch::Tensor output;
  {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    output = net->forward(x);
  }
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  output.to(torch::kFloat32).pow(2).mean().backward();
  for (const auto& parameter : net->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
    EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat32);
    EXPECT_GT(parameter.grad().abs().sum().item<float>(), 0);
  }
  EXPECT_TRUE(torch::allclose(net->forward(x), output.to(torch::kFloat32), 0.05, 0.05));
  EXPECT_EQ(net->forward(x).scalar_type(), torch::kFloat32);
}

TEST(AutocastGuard, OneWithinAnotherEndsWhereItBegan) {
  EXPECT_EQ(product_type(), torch::kFloat32);
  {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(product_type(), torch::kBFloat16);
    {
      const Autocast off(torch::kCPU, torch::kBFloat16, {.enabled = false});
      EXPECT_EQ(product_type(), torch::kFloat32);
      const Autocast on(torch::kCPU, torch::kBFloat16);
      EXPECT_EQ(product_type(), torch::kBFloat16);
    }
    EXPECT_EQ(product_type(), torch::kBFloat16);
  }
  EXPECT_EQ(product_type(), torch::kFloat32);
}

// Whether it is on, and for which type, on the CPU and on CUDA.
std::string switches() {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  const auto of = [](torch::DeviceType device) {
    return fmt::format("{} {}", at::autocast::is_autocast_enabled(device),
                       c10::toString(at::autocast::get_autocast_dtype(device)));
  };
  return of(torch::kCPU) + ", " + of(torch::kCUDA);
#else
  return fmt::format("{} {}, {} {}", at::autocast::is_cpu_enabled(),
                     c10::toString(at::autocast::get_autocast_cpu_dtype()),
                     at::autocast::is_enabled(),
                     c10::toString(at::autocast::get_autocast_gpu_dtype()));
#endif
}

TEST(AutocastGuard, EverySwitchIsAgainWhatItWas) {
  const std::string before = switches();
  EXPECT_EQ(before, "false BFloat16, false Half");
  {
    const Autocast half(torch::kCUDA, torch::kBFloat16);
    EXPECT_EQ(switches(), "false BFloat16, true BFloat16");
    {
      const Autocast other(torch::kCUDA, torch::kFloat16, {.enabled = false});
      EXPECT_EQ(switches(), "false BFloat16, false Half");
      const Autocast cpu(torch::kCPU, torch::kBFloat16);
      EXPECT_EQ(switches(), "true BFloat16, false Half");
    }
    EXPECT_EQ(switches(), "false BFloat16, true BFloat16");
  }
  EXPECT_EQ(switches(), before);
}

// Older LibTorch has no float16 on CPUs.
TEST(AutocastGuard, WhatLibTorchRefusesLeavesNothingBehind) {
  const std::string before = switches();
  try {
    const Autocast half(torch::kCPU, torch::kFloat16);
    EXPECT_EQ(switches(), "true Half, false Half");
  } catch (const BadInput& error) {
    EXPECT_EQ(std::string(error.what()).find("this LibTorch has no Autocast to Half here"), 0U);
  }
  EXPECT_EQ(switches(), before);
}

TEST(AutocastGuard, AnExceptionEndsIt) {
  EXPECT_THROW(
      {
        const Autocast half(torch::kCPU, torch::kBFloat16);
        throw std::runtime_error("in forward");
      },
      std::runtime_error);
  EXPECT_EQ(product_type(), torch::kFloat32);
}

TEST(AutocastGuard, IsOfItsThread) {
  const Autocast half(torch::kCPU, torch::kBFloat16);
  torch::ScalarType elsewhere = torch::kBFloat16;
  std::thread([&] { elsewhere = product_type(); }).join();
  EXPECT_EQ(elsewhere, torch::kFloat32);
  EXPECT_EQ(product_type(), torch::kBFloat16);
}

// A weight that changes behind LibTorch's back, as in a graph that is replayed, is seen again only where it is cast again.
TEST(AutocastGuard, CastWeightsAreKeptUntilTheOutermostEndsUnlessToldNotTo) {
  torch::Tensor weight = torch::ones({2, 2}).requires_grad_();
  const auto product = [&] {
    return torch::mm(torch::ones({2, 2}), weight)[0][0].to(torch::kFloat32).item<float>();
  };
  const auto change = [&](float value) {
    torch::NoGradGuard no_grad;
    weight.fill_(value);
  };
  {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(product(), 2);
    change(2);
    {
      const Autocast inner(torch::kCPU, torch::kBFloat16);
      EXPECT_EQ(product(), 2);
    }
    EXPECT_EQ(product(), 2);  // still kept
  }
  {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(product(), 4);
  }
  {
    const Autocast half(torch::kCPU, torch::kBFloat16, {.cache_weights = false});
    EXPECT_EQ(product(), 4);
    change(3);
    EXPECT_EQ(product(), 6);
  }
}

TEST(AutocastGuard, RefusesWhatItIsNotFor) {
  EXPECT_THROW(Autocast(torch::kCPU, torch::kFloat32), BadInput);
  EXPECT_THROW(Autocast(torch::kMeta, torch::kBFloat16), BadInput);
  torch::nn::Linear layer(2, 2);
  EXPECT_THROW(hold_weights(*layer, torch::kFloat64), BadInput);
  EXPECT_EQ(layer->weight.scalar_type(), torch::kFloat32);
}

// An output layer that an embedding has, too; a layer that is used twice; one that is frozen; and a user's own with more
// than weight and bias.
class Many : public torch::nn::Module {
 public:
  class Scaled : public torch::nn::LinearImpl {
   public:
    Scaled() : LinearImpl(2, 2) { register_parameter("scale", torch::ones(2)); }
  };
  Many() {
    torch::nn::Linear output(2, 3);
    torch::nn::Embedding tokens(3, 2);
    tokens->register_parameter("tied", output->weight);
    const torch::nn::Linear layer(2, 2);
    torch::nn::Conv2d frozen(1, 1, 1);
    for (torch::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    register_module("tokens", tokens);
    register_module("output", output);
    register_module("layer", layer);
    register_module("again", layer);
    register_module("conv", torch::nn::Conv2d(1, 1, 1));
    register_module("frozen", frozen);
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})));
    register_module("scaled", std::make_shared<Scaled>());
  }
};

TEST(HoldWeights, TakesWhatAutocastCastsAndNothingElse) {
  EXPECT_EQ(weights_to_hold(Many()),
            (std::vector<std::string>{"output.bias", "layer.weight", "layer.bias", "conv.weight",
                                      "conv.bias", "scaled.weight", "scaled.bias"}));
}

}  // namespace
}  // namespace lockstep::testing
