// The loop of plain.cpp on any number of workers, line by line. Its bits depend on how many they are; those of train.cpp
// do not.
//
//   ./drop_in                         alone
//   lockstep run -n 4 -- ./drop_in    on four workers, each with a quarter of every batch
#include <lockstep/lockstep.h>

#include <cstdio>

#include "net.h"

int main() {
  torch::manual_seed(0);
  auto world = lockstep::join();                       // alone when nobody launched us
  auto model = lockstep::data_parallel(Net(), world);  // checked, broadcast, hooked
  lockstep::optim::AdamW optimizer(model, {.lr = 1e-3});
  auto loader = lockstep::loader(Pictures(), world, {.global_batch = 256});
  double last = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto& batch : loader.epoch(epoch)) {
      auto loss = torch::nll_loss(model->forward(batch.data), batch.target);
      loss.backward();   // leaves the average over workers in every gradient
      optimizer.step();  // collective: every worker calls it
      optimizer.zero_grad();
      last = loss.item<double>();
    }
    last = lockstep::mean(world, last);
    if (world.leader()) std::printf("epoch %d: loss %.4f\n", epoch, last);
  }
  if (world.leader()) lockstep::save(model, "net.safetensors");
}
