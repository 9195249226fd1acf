// Workers that run out of batches at different times, with a batch norm over all of them.
//
//   ./uneven                         alone
//   lockstep run -n 4 -- ./uneven    four workers, each with another number of batches
#include <lockstep/lockstep.h>

#include <cstdio>
#include <vector>

struct NormedImpl : torch::nn::Module {
  torch::nn::Sequential layers{torch::nn::Linear(20, 64), torch::nn::BatchNorm1d(64),
                               torch::nn::ReLU(), torch::nn::Linear(64, 3)};
  NormedImpl() { register_module("layers", layers); }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
};
TORCH_MODULE(Normed);

// What this worker has read: 32 batches on rank 0, 16 more on each next rank.
std::vector<torch::data::Example<>> own_batches(int rank) {
  torch::manual_seed(1);
  const auto centres = torch::randn({3, 20});
  torch::manual_seed(2 + static_cast<std::uint64_t>(rank));
  std::vector<torch::data::Example<>> batches;
  for (int i = 0; i < 32 + 16 * rank; ++i) {
    const auto target = torch::randint(3, {16}, torch::kInt64);
    batches.emplace_back(centres.index_select(0, target) + torch::randn({16, 20}), target);
  }
  return batches;
}

int main() {
  auto world = lockstep::join();
  Normed net;
  lockstep::convert_sync_batchnorm(*net, world);
  auto model = lockstep::data_parallel(net, world);
  lockstep::optim::SGD optimizer(model, {.lr = 0.05, .momentum = 0.9});
  const auto batches = own_batches(world.rank());
  lockstep::UnevenInputs inputs(batches, world);
  lockstep::Metrics metrics(world, {"loss"});
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const auto& batch : inputs) {  // ends on all workers together
      optimizer.zero_grad();
      const auto loss =
          torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
      lockstep::backward(loss,
                         batch.data.size(0));  // the mean over the samples of those who have some
      optimizer.step();
      metrics.add("loss", loss, 1);  // counts nothing of a worker that has no batch left
    }
    const lockstep::Averages all = metrics.reduce();
    const double loss = all.mean("loss");
    if (world.leader())
      std::printf("epoch %d: loss %.4f over %.0f batches\n", epoch, loss, all.weight("loss"));
  }
  if (world.leader()) lockstep::save(model, "net.safetensors");
}
