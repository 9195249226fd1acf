// The loop of a user's own on a real GPU, beside plain LibTorch's: `make test-gpu` runs it.
#include <gtest/gtest.h>
#include <lockstep/activation_checkpoint.h>
#include <lockstep/codec.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/optim.h>
#include <lockstep/sync_batchnorm.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <sstream>
#include <vector>

#include "control/world_state.h"
#include "tests/torch/loops.h"
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

// What a codec of CPUs makes of x + lost, block by block.
torch::Tensor by_codec(const Codec& codec, const torch::Tensor& x, torch::Tensor& lost) {
  const torch::Tensor sent = (codec.has_error_feedback() ? x + lost : x).flatten().contiguous();
  torch::Tensor result = torch::empty_like(sent);
  const auto count = static_cast<std::size_t>(sent.numel());
  for (std::size_t first = 0; first < count; first += Codec::kBlock) {
    const std::size_t some = std::min(Codec::kBlock, count - first);
    std::vector<std::byte> bytes(codec.bytes(some));
    codec.encode({sent.data_ptr<float>() + first, some}, bytes.data());
    codec.decode(bytes.data(), {result.data_ptr<float>() + first, some});
  }
  lost = (sent - result).view_as(x);
  return result.view_as(x);
}

TEST(GpuLoop, ACodecGivesTheGradientsOfItsDefinition) {
  for (const std::string words : {"bf16", "fp16", "int8", "top-k:0.1"}) {
    const auto codec = codec::parse(words);
    World world = World::over(connect_alone(), kFirstGpu);
    auto net = seeded<TwoLayers>(1, 50, 60);  // three blocks of weights, of which the last is short
    auto model = data_parallel(net, world, {.codec = codec, .bucket_bytes = 4096});
    auto plain = seeded<TwoLayers>(1, 50, 60);
    plain->to(torch::kCUDA);
    std::vector<torch::Tensor> sent_lost;
    for (const torch::Tensor& parameter : net->parameters())
      sent_lost.push_back(torch::zeros_like(parameter, torch::kCPU));
    std::vector<torch::Tensor> average_lost = sent_lost;
    for (int step = 0; step < 3; ++step) {
      const auto x = samples(static_cast<std::uint64_t>(step), {6, 50}).to(torch::kCUDA);
      model.zero_grad();
      model(x).pow(2).mean().backward();
      plain->zero_grad();
      plain->forward(x).pow(2).mean().backward();
      for (std::size_t i = 0; i < sent_lost.size(); ++i) {
        const torch::Tensor sent =
            by_codec(*codec, plain->parameters()[i].grad().cpu(), sent_lost[i]);
        const torch::Tensor expected = by_codec(*codec, sent, average_lost[i]);
        EXPECT_TRUE(torch::equal(net->parameters()[i].grad().cpu(), expected))
            << words << ' ' << step << ' ' << i;
      }
    }
  }
}

// In a Step, clipped and unscaled; the loss of one step overflows.
TEST(GpuLoop, AWrappedOptimizerStepsAsLockstepsOwn) {
  struct Trained {
    torch::Tensor weight;
    std::vector<double> norms;
  };
  const auto run = [](bool wraps) {
    World world = World::over(connect_alone(), kFirstGpu);
    auto net = loops::net_of("mlp");
    auto model = data_parallel(net, world);
    std::unique_ptr<optim::Optimizer> optimizer;
    if (wraps) {
      optimizer = std::make_unique<optim::Wrapped>(
          model, std::make_shared<torch::optim::SGD>(net->parameters(),
                                                     torch::optim::SGDOptions(0.1).momentum(0.9)));
    } else {
      optimizer =
          std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    }
    optimizer->set_clip_norm(1e-2);
    optimizer->keep_norms();
    GradScaler scaler({.growth_interval = 2});
    Job job(world, loops::job_options());
    Step step(job, "train", {optimizer.get()},
              [&](const Shard& shard) {
                const auto loss = models::loss(*net, shard.batch);
                const bool bad = shard.step == 2 && shard.index == 1;
                return bad ? loss * std::numeric_limits<float>::infinity() : loss;
              },
              {.scaler = &scaler, .cuda_graphs = false});
    Trained trained;
    for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 5})) {
      EXPECT_EQ(step(batch).skipped, batch.step() == 2);
      trained.norms.push_back(optimizer->last_norm());
      for (const auto& [name, norm] : optimizer->last_norms()) trained.norms.push_back(norm);
    }
    EXPECT_EQ(optimizer->steps(), 4);
    trained.weight = net->parameters()[0].detach().clone();
    return trained;
  };
  const Trained ours = run(false);
  const Trained theirs = run(true);
  EXPECT_LT(largest_difference(ours.weight, theirs.weight), 1e-6);
  EXPECT_TRUE(torch::allclose(torch::tensor(ours.norms), torch::tensor(theirs.norms)));
}

TEST(GpuLoop, AWrappedOptimizerLeavesUnusedParametersAlone) {
  World world = World::over(connect_alone(), kFirstGpu);
  auto net = seeded<TwoLayers>(1);
  auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
  optim::Wrapped optimizer(
      model, std::make_shared<torch::optim::AdamW>(
                 net->parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.3)));
  const auto unused = net->second->weight.detach().clone();
  const auto used = net->first->weight.detach().clone();
  for (std::uint64_t step = 0; step < 3; ++step) {
    model.zero_grad();
    net->first(samples(step, {6, 8}).to(torch::kCUDA)).pow(2).mean().backward();
    optimizer.step();
  }
  EXPECT_TRUE(torch::equal(net->second->weight, unused));
  EXPECT_FALSE(torch::equal(net->first->weight, used));
}

// A batch norm and dropout, which runs again in a checkpoint. With one shard the layer is LibTorch's.
TEST(GpuLoop, AStepWithSharedBatchNormsTrainsAsOneWithLibTorchs) {
  const auto run = [](bool converts) {
    World world = World::over(connect_alone(), kFirstGpu);
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16),
                              torch::nn::Dropout(0.3), torch::nn::Linear(16, 4));
    if (converts) convert_sync_batchnorm(*net, world);
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.1});
    Job job(world, {.global_batch = 16, .shards = 1, .seed = 5});
    const auto tail = [&](const torch::Tensor& x) {
      return net[3]->as<torch::nn::Linear>()->forward(net[2]->as<torch::nn::Dropout>()->forward(x));
    };
    Step step(job, "train", {&optimizer},
              [&](const Shard& shard) {
                const auto first = net[1]->as<torch::nn::BatchNorm1d>()->forward(
                    net[0]->as<torch::nn::Linear>()->forward(shard.batch.data));
                return checkpoint(tail, first).pow(2).mean();
              },
              {.cuda_graphs = false});
    std::vector<double> losses;
    const auto data = tensor_dataset(samples(1, {64, 8}), samples(2, {64}));
    for (const GlobalBatch& batch : job.batches(data, {.steps = 6}))
      losses.push_back(step(batch).loss());
    losses.push_back(net[1]->as<torch::nn::BatchNorm1d>()->running_var.sum().item<double>());
    return losses;
  };
  EXPECT_TRUE(torch::allclose(torch::tensor(run(true)), torch::tensor(run(false)), 1e-4));
}

// Each of two parameters is multiplied once.
TEST(GpuLoop, AWrappedOptimizerGetsAGradientThatTwoParametersShare) {
  World world = World::over(connect_alone(), kFirstGpu);
  auto net = seeded<TwoLayers>(1, 8, 8, 8);
  auto model = data_parallel(net, world);
  optim::Wrapped optimizer(model, std::make_shared<torch::optim::SGD>(net->parameters(), 1.0));
  optimizer.set_clip_norm(0.01);
  model.zero_grad();
  model(samples(1, {6, 8}).to(torch::kCUDA)).pow(2).mean().backward();
  net->second->weight.mutable_grad() = net->first->weight.grad();
  const auto first = net->first->weight.detach().clone();
  const auto second = net->second->weight.detach().clone();
  optimizer.step();
  const auto moved = first - net->first->weight;
  EXPECT_GT(moved.abs().max().item<double>(), 0);
  EXPECT_LT(largest_difference(moved, second - net->second->weight), 1e-6);
}

// Half weights, without weights, channels last; beside LibTorch's layer, which has the same samples.
TEST(GpuLoop, ASynchronisedBatchNormHasLibTorchsNumbersInEveryForm) {
  World world = World::over(connect_alone(), kFirstGpu);
  for (const bool affine : {true, false}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        const auto make = [&] {
          torch::nn::BatchNorm2d layer(torch::nn::BatchNorm2dOptions(4).affine(affine));
          layer->to(torch::kCUDA, type);
          return layer;
        };
        auto layer = make();
        auto plain = make();
        convert_sync_batchnorm(*layer, world);
        const auto pass = [&](torch::nn::BatchNorm2d& of) {
          const auto x =
              samples(1, {6, 4, 5, 5}).to(torch::kCUDA, type).contiguous(format).requires_grad_();
          (of(x) * samples(2, {6, 4, 5, 5}).to(torch::kCUDA, type)).sum().backward();
          return x.grad().to(torch::kFloat32);
        };
        const double most = type == torch::kFloat32 ? 1e-5 : 5e-2;
        EXPECT_LT(largest_difference(pass(layer), pass(plain)), most) << affine << type;
        EXPECT_LT(largest_difference(layer->running_var.to(torch::kFloat32),
                                     plain->running_var.to(torch::kFloat32)),
                  most)
            << affine << type;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
