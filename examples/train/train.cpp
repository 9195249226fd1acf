// What plain.cpp trains, on any number of workers and with the same bits on each number:
//
//   ./train                         alone
//   lockstep run -n 4 -- ./train    on four workers, each with two of the eight shards of every batch
#include <lockstep/lockstep.h>

#include <cstdio>

#include "net.h"

int main() {
  torch::manual_seed(0);
  auto world = lockstep::join();  // alone when nobody launched us
  lockstep::Job job(world, {.global_batch = 256, .shards = 8, .seed = 7});
  auto model = lockstep::data_parallel(Net(), world);  // checked, broadcast, hooked
  lockstep::optim::AdamW optimizer(model, {.lr = 1e-3});
  lockstep::Step step(job, "train", {&optimizer}, [&](const lockstep::Shard& shard) {
    return torch::nll_loss(model->forward(shard.batch.data), shard.batch.target);
  });
  for (const auto& batch : job.batches(Pictures(), {.epochs = 5})) {
    const auto outcome = step(batch);  // collective: every worker calls it
    if (!batch.ends_epoch()) continue;
    const double loss = outcome.loss();  // over all shards
    if (world.leader()) std::printf("epoch %d: loss %.4f\n", static_cast<int>(batch.epoch()), loss);
  }
  if (!world.leader()) return 0;
  std::printf("sha256 %s\n", job.weights_sha256().c_str());
  lockstep::save(model, "net.safetensors");
}
