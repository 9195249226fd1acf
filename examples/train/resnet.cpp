// Everything for large batches at once, in a Step: a ResNet-18 with batch norms over the global batch, matrix products in
// bfloat16, a scaler, LARS with warm-up, and an average of the weights. On CPUs.
//
//   ./resnet                         alone
//   lockstep run -n 3 -- ./resnet    the same weights, to the bit
#include <lockstep/lockstep.h>

#include <cstdio>
#include <cstdlib>

#include "net.h"

using torch::nn::BatchNorm2d, torch::nn::Conv2d, torch::nn::Conv2dOptions;

Conv2d convolution(int from, int to, int size, int stride) {
  return Conv2d(Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(int from, int to, int stride)
      : conv1(register_module("conv1", convolution(from, to, 3, stride))),
        conv2(register_module("conv2", convolution(to, to, 3, 1))),
        norm1(register_module("norm1", BatchNorm2d(to))),
        norm2(register_module("norm2", BatchNorm2d(to))) {
    if (from == to) return;
    around = register_module(
        "around", torch::nn::Sequential(convolution(from, to, 1, stride), BatchNorm2d(to)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (around ? around->forward(x) : x));
  }
  Conv2d conv1, conv2;
  BatchNorm2d norm1, norm2;
  torch::nn::Sequential around{nullptr};
};
TORCH_MODULE(Block);

struct ResNetImpl : torch::nn::Module {
  explicit ResNetImpl(int width) {
    layers->push_back(convolution(1, width, 3, 2));
    layers->push_back(BatchNorm2d(width));
    layers->push_back(torch::nn::ReLU());
    int from = width;
    for (const int to : {width, 2 * width, 4 * width, 8 * width}) {
      layers->push_back(Block(from, to, from == to ? 1 : 2));
      layers->push_back(Block(to, to, 1));
      from = to;
    }
    layers->push_back(torch::nn::AdaptiveAvgPool2d(1));
    layers->push_back(torch::nn::Flatten());
    layers->push_back(torch::nn::Linear(from, 10));
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x.view({-1, 1, 28, 28})); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(ResNet);

int main(int argc, char** argv) {
#ifdef __aarch64__
  at::globalContext().setUserEnabledMkldnn(false);  // LibTorch 1.13's oneDNN has no bfloat16 there
#endif
  torch::manual_seed(0);
  auto world = lockstep::join();
  const int width = argc > 1 ? std::atoi(argv[1]) : 8;  // 64 is that of the paper
  lockstep::Job job(world, {.global_batch = 256, .shards = 8, .seed = 7});
  ResNet net(width);
  lockstep::convert_sync_batchnorm(*net, world);
  auto model = lockstep::data_parallel(net, world);
  lockstep::optim::LARS optimizer(model, {.lr = 4, .weight_decay = 1e-4});
  optimizer.set_ema(0.9);
  lockstep::GradScaler scaler;
  const auto rate = lockstep::large_batch(
      {.lr = 1, .base_batch = 64, .global_batch = 256, .warmup_steps = 8, .then = [](double peak) {
         return lockstep::lr_scheduler::CosineAnnealingLR{peak, 32};
       }});
  lockstep::Step step(
      job, "train", {&optimizer},
      [&](const lockstep::Shard& shard) {
        lockstep::Autocast half(torch::kCPU, torch::kBFloat16);
        const auto output = net(shard.batch.data).to(torch::kFloat32);
        shard.report("accuracy", (output.argmax(1) == shard.batch.target).sum());
        return torch::cross_entropy_loss(output, shard.batch.target);
      },
      {.learning_rate = [&](std::int64_t at) { return rate(at); }, .scaler = &scaler});
  for (const auto& batch : job.batches(Pictures(), {.steps = 32})) {
    const auto outcome = step(batch);
    const double loss = outcome.loss(), accuracy = outcome.metric("accuracy");
    if (world.leader() && batch.step() % 8 == 7)
      std::printf("step %d: loss %.4f accuracy %.3f\n", static_cast<int>(batch.step()), loss,
                  accuracy);
  }
  double away = 0;  // of the averages from the weights
  for (const auto& [name, average] : optimizer.ema())
    away += (average - net->named_parameters()[name].detach()).square().sum().item<double>();
  if (world.leader())
    std::printf("weights %.16s, average %.6f away\n", job.weights_sha256().c_str(), away);
}
