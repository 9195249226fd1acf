// Half types, in the drop-in loop: matrix products in bfloat16, and a scaler, which float16 needs.
//
//   ./mixed_precision                         alone
//   lockstep run -n 4 -- ./mixed_precision    on four workers
#include <lockstep/lockstep.h>

#include <cstdio>

#include "net.h"

int main() {
#ifdef __aarch64__
  at::globalContext().setUserEnabledMkldnn(false);  // LibTorch 1.13's oneDNN has no bfloat16 there
#endif
  torch::manual_seed(0);
  auto world = lockstep::join();
  auto model = lockstep::data_parallel(Net(), world);
  lockstep::optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
  optimizer.set_clip_norm(5);  // of gradients that have been divided by the scale
  lockstep::GradScaler scaler;
  const torch::Device device(world.device());

  auto loader = lockstep::loader(Pictures(), world, {.global_batch = 256});
  int skipped = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    double sum = 0;
    for (auto& batch : loader.epoch(epoch)) {
      torch::Tensor loss;
      {
        lockstep::Autocast half(device.type(), torch::kBFloat16);
        loss = torch::nll_loss(model->forward(batch.data).to(torch::kFloat32), batch.target);
      }
      optimizer.zero_grad();
      scaler.scale(loss).backward();
      if (!scaler.step(optimizer)) ++skipped;  // on every worker, if one gradient has overflowed
      scaler.update();
      sum = loss.item<double>();
    }
    const double last = lockstep::mean(world, sum);
    if (world.leader())
      std::printf("epoch %d: loss %.4f scale %g skipped %d\n", epoch, last, scaler.scale(),
                  skipped);
  }
  if (world.leader()) lockstep::save(model, "net.safetensors");
}
