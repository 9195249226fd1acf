#include "tests/torch/gpu/gpu_drop_in.h"

#include <lockstep/data_parallel.h>
#include <lockstep/metrics.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/torch/nets.h"

namespace lockstep::testing {
namespace {

// The batch of a worker in a step.
torch::Tensor batch_of(int rank, int step) {
  return samples(static_cast<std::uint64_t>(100 * rank + step), {4, 6}).to(torch::kCUDA);
}

struct Normed : torch::nn::Module {
  Normed() {
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(norm(x)); }
  torch::nn::BatchNorm1d norm{6};
  torch::nn::Linear last{6, 1};
};

// Of the running mean after two passes. A layer takes over a tenth of each batch's mean.
double distance_of_buffers(World& world, BufferSource source) {
  const auto net = std::make_shared<Normed>();
  auto model = data_parallel(net, world, {.buffers = source});
  for (int step = 0; step < 2; ++step) model(batch_of(world.rank(), step)).sum().backward();
  const auto mean = [&](int rank, int step) { return batch_of(rank, step).mean(0) / 10; };
  const auto of_all = [&](int step) {
    torch::Tensor sum = mean(0, step);
    for (int rank = 1; rank < world.size(); ++rank) sum = sum + mean(rank, step);
    return sum / world.size();
  };
  const int own = world.rank();
  torch::Tensor expected;
  if (source == BufferSource::kLeader) expected = mean(0, 0) * 0.9 + mean(0, 1);
  if (source == BufferSource::kMean) expected = of_all(0) * 0.9 + of_all(1);
  if (source == BufferSource::kLeaderBeforeForward) expected = mean(0, 0) * 0.9 + mean(own, 1);
  if (source == BufferSource::kOwn) expected = mean(own, 0) * 0.9 + mean(own, 1);
  return largest_difference(net->norm->running_mean, expected);
}

double distance_of_metrics(World& world) {
  Metrics metrics(world, {"rank"});
  metrics.add("rank", torch::full({}, static_cast<double>(world.rank()), torch::kCUDA),
              torch::ones({}, torch::kCUDA));
  return std::abs(metrics.reduce().mean("rank") - (world.size() - 1) / 2.0);
}

// Of an embedding whose gradients are sparse: each worker looks up two rows, of which one is its own.
double distance_of_sparse(World& world) {
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(8, 3).sparse(true));
  auto model = data_parallel(net, world);
  const auto rows = torch::tensor({0, 1 + world.rank()}, torch::kInt64).to(torch::kCUDA);
  model->forward(rows).sum().backward();
  const auto expected = torch::zeros({8, 3});
  expected[0] = 1;
  for (int rank = 0; rank < world.size(); ++rank) expected[1 + rank] = 1.0 / world.size();
  return largest_difference(net->weight.grad().to_dense().cpu(), expected);
}

torch::Tensor penalised(TwoLayersImpl& net, const torch::Tensor& batch) {
  const auto at = batch.clone().requires_grad_();
  const auto out = net.forward(at);
  const auto slope = torch::autograd::grad({out.sum()}, {at}, {}, true, /*create_graph=*/true)[0];
  return out.pow(2).mean() + slope.pow(2).mean();
}

// Of the gradients of a penalty on gradients.
double distance_of_penalty(World& world) {
  auto net = seeded<TwoLayers>(1, 6, 8, 2);
  auto plain = seeded<TwoLayers>(1, 6, 8, 2);
  plain->to(torch::kCUDA);
  auto model = data_parallel(net, world);
  penalised(*net, batch_of(world.rank(), 0)).backward();
  std::vector<torch::Tensor> all;
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(batch_of(rank, 0));
  penalised(*plain, torch::cat(all)).backward();
  double distance = 0;
  for (std::size_t i = 0; i < plain->parameters().size(); ++i)
    distance = std::max(
        distance, largest_difference(net->parameters()[i].grad(), plain->parameters()[i].grad()));
  return distance;
}

}  // namespace

double distance_of_drop_in(World& world) {
  double distance =
      std::max({distance_of_metrics(world), distance_of_sparse(world), distance_of_penalty(world)});
  for (const auto source : {BufferSource::kLeader, BufferSource::kMean,
                            BufferSource::kLeaderBeforeForward, BufferSource::kOwn})
    distance = std::max(distance, distance_of_buffers(world, source));
  return distance;
}

}  // namespace lockstep::testing
