// Batch norms over the samples of all workers, a learning rate with warm-up, and an exact evaluation, in the drop-in loop.
//
//   ./sync_batchnorm                         alone
//   lockstep run -n 4 -- ./sync_batchnorm    the same statistics, from four workers
#include <lockstep/lockstep.h>

#include <cstdio>

#include "net.h"

struct NormedImpl : torch::nn::Module {
  torch::nn::Sequential layers{torch::nn::Linear(784, 64), torch::nn::BatchNorm1d(64),
                               torch::nn::ReLU(),          torch::nn::Linear(64, 10),
                               torch::nn::BatchNorm1d(10), torch::nn::LogSoftmax(1)};
  NormedImpl() { register_module("layers", layers); }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
};
TORCH_MODULE(Normed);

int main() {
  torch::manual_seed(0);
  auto world = lockstep::join();
  Normed net;
  lockstep::convert_sync_batchnorm(*net, world);
  auto model = lockstep::data_parallel(net, world);
  lockstep::optim::SGD optimizer(model, {.lr = 0, .momentum = 0.9});
  const lockstep::Schedule rate =
      lockstep::large_batch({.lr = 0.02,
                             .base_batch = 64,
                             .global_batch = 256,
                             .warmup_steps = 16,
                             .then = [](double peak) {
                               return lockstep::lr_scheduler::CosineAnnealingLR{peak, 64};
                             }});
  if (world.leader()) std::printf("learning rate %s\n", rate.text().c_str());

  auto loader = lockstep::loader(Pictures(), world, {.global_batch = 256});
  lockstep::Metrics metrics(world, {"loss", "right"});
  std::int64_t step = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto& batch : loader.epoch(epoch)) {
      optimizer.set_lr(rate(step++));
      torch::nll_loss(model->forward(batch.data), batch.target).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    torch::NoGradGuard no_grad;
    net->eval();
    for (auto& batch : loader.epoch(epoch)) {
      auto output = model->forward(batch.data);
      metrics.add("loss", torch::nll_loss(output, batch.target, {}, at::Reduction::Sum),
                  batch.samples);
      metrics.add("right", (output.argmax(1) == batch.target).sum(), batch.samples);
    }
    net->train();
    const lockstep::Averages all = metrics.reduce();
    const double loss = all.mean("loss"), right = all.mean("right");
    if (world.leader()) std::printf("epoch %d: loss %.4f accuracy %.4f\n", epoch, loss, right);
  }
  if (world.leader()) lockstep::save(model, "net.safetensors");
}
