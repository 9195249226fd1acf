// The loop of train.cpp with DiLoCo: four shards train by themselves for 8 steps, and then exchange weights.
//
//   ./diloco                         alone
//   lockstep run -n 4 -- ./diloco    on four workers, one for each shard, with the same bits
#include <lockstep/lockstep.h>

#include <cstdio>

#include "net.h"

int main() {
  torch::manual_seed(0);
  auto world = lockstep::join();
  lockstep::Job job(world, {.global_batch = 256,
                            .shards = 4,
                            .seed = 7,
                            .local_steps = lockstep::LocalSteps::diloco(8)});
  auto model = lockstep::data_parallel(Net(), world);
  lockstep::optim::AdamW optimizer(model, {.lr = 1e-3});  // of each shard
  lockstep::Step step(job, "train", {&optimizer}, [&](const lockstep::Shard& shard) {
    return torch::nll_loss(model->forward(shard.batch.data), shard.batch.target);
  });
  for (const auto& round : job.batches(Pictures(), {.epochs = 5})) {
    const auto outcome = step(round);  // 8 steps of each shard, and the exchange
    if (!round.ends_epoch()) continue;
    const double loss = outcome.loss();  // over all shards and steps of the round
    if (world.leader()) std::printf("epoch %d: loss %.4f\n", static_cast<int>(round.epoch()), loss);
  }
  if (!world.leader()) return 0;
  std::printf("sha256 %s\n", job.weights_sha256().c_str());
  lockstep::save(model, "net.safetensors");
}
