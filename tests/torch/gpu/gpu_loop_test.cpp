// The loop of a user's own on a real GPU, beside plain LibTorch's: `make test-gpu` runs it.
#include <gtest/gtest.h>
#include <lockstep/optim.h>

#include <sstream>

#include "control/world_state.h"
#include "tests/torch/nets.h"

namespace lockstep::testing {
namespace {

constexpr Device kFirstGpu{DeviceKind::kCuda, 0};

TEST(GpuLoop, LoadingIntoAWrappedModelGoesOnTraining) {
  control::OwnBootstrap bootstrap;
  World world = World::over(connect("nccl", bootstrap), kFirstGpu);
  auto net = seeded<TwoLayers>(1);
  std::stringstream file;
  torch::save(seeded<TwoLayers>(2), file);
  auto model = data_parallel(net, world, {.force_collectives = true});
  optim::SGD optimizer(model, {.lr = 0.1});
  auto plain = seeded<TwoLayers>(2);
  plain->to(torch::kCUDA);
  torch::optim::SGD stock(plain->parameters(), 0.1);
  torch::load(net, file, torch::Device(torch::kCUDA, 0));
  for (int step = 0; step < 3; ++step) {
    const auto x = samples(static_cast<std::uint64_t>(step), {6, 8}).to(torch::kCUDA);
    optimizer.zero_grad();
    model(x).pow(2).mean().backward();
    optimizer.step();
    stock.zero_grad();
    plain->forward(x).pow(2).mean().backward();
    stock.step();
  }
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_LT(largest_difference(net->parameters()[i], plain->parameters()[i]), 1e-6) << i;
}

TEST(GpuLoop, AParameterThatNobodyUsedIsLeftAlone) {
  World world = World::over(connect_alone(), kFirstGpu);
  auto net = seeded<TwoLayers>(1);
  auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
  optim::AdamW optimizer(model, {.lr = 0.05, .weight_decay = 0.3});
  auto plain = seeded<TwoLayers>(1);
  plain->to(torch::kCUDA);
  torch::optim::AdamW stock(plain->parameters(),
                            torch::optim::AdamWOptions(0.05).weight_decay(0.3));
  for (int step = 0; step < 5; ++step) {
    const auto loss_of = [&](TwoLayersImpl& of) {
      const auto x = samples(static_cast<std::uint64_t>(step), {6, 8}).to(torch::kCUDA);
      return (step % 2 == 0 ? of.first(x) : of.forward(x)).pow(2).mean();
    };
    model.zero_grad();
    loss_of(*net).backward();
    EXPECT_EQ(net->second->weight.grad().defined(), step % 2 == 1) << step;
    optimizer.step();
    plain->zero_grad(/*set_to_none=*/true);
    loss_of(*plain).backward();
    stock.step();
    EXPECT_EQ(net->second->weight.grad().defined(), step % 2 == 1) << step;
  }
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_LT(largest_difference(net->parameters()[i], plain->parameters()[i]), 1e-5) << i;
}

TEST(GpuLoop, ANormIsToldAlsoIfAParameterIsLeftAlone) {
  World world = World::over(connect_alone(), kFirstGpu);
  auto net = seeded<TwoLayers>(1);
  auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
  optim::AdamW optimizer(model, {.lr = 0.05});
  optimizer.set_clip_norm(1);
  optimizer.keep_norms();
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    net->first(samples(static_cast<std::uint64_t>(step), {6, 8}).to(torch::kCUDA))
        .pow(2)
        .mean()
        .backward();
    const double norm = net->first->weight.grad().norm().item<double>();
    optimizer.step();
    EXPECT_GE(optimizer.last_norm(), norm * 0.999);
    for (const auto& [name, of] : optimizer.last_norms())
      EXPECT_EQ(of > 0, name.find("first") == 0) << name;
  }
}

}  // namespace
}  // namespace lockstep::testing
