// Graphs that are not a chain: parameters that are used several times, several passes, gradients of gradients. Against
// plain LibTorch on all workers' batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/activation_checkpoint.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include "tests/torch/loops.h"
#include "tests/torch/replica_cases.h"

namespace lockstep::testing::graphs {
namespace {

using replicas::batch_of;
using replicas::gradients;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 3;

// A layer whose weight is used again, transposed, as in a tied decoder.
struct TiedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::tanh(torch::tanh(layer(x)).matmul(layer->weight)) + last(x);
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(8, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 8));
};
TORCH_MODULE(Tied);

using Loss = std::function<torch::Tensor(TiedImpl&, const torch::Tensor& x)>;

// How far the slope by the inputs is from 1.
torch::Tensor slope(TiedImpl& net, const torch::Tensor& x) {
  const auto at = x.detach().clone().requires_grad_(true);
  const auto gradient =
      torch::autograd::grad({torch::tanh(net.forward(at)).sum()}, {at}, {}, true, true)[0];
  return (gradient.norm(2, 1) - 1).pow(2).mean();
}

// The squared norm of the gradient by the parameters.
torch::Tensor steepness(TiedImpl& net, const torch::Tensor& x) {
  auto sum = torch::zeros({});
  for (const auto& gradient :
       torch::autograd::grad({net.forward(x).pow(2).mean()}, net.parameters(), {}, true, true))
    sum = sum + gradient.pow(2).sum();
  return sum;
}

const std::vector<std::pair<std::string, Loss>>& losses() {
  static const std::vector<std::pair<std::string, Loss>> all{
      {"used three times",
       [](TiedImpl& net, const torch::Tensor& x) {
         return net.forward(net.forward(net.forward(x))).pow(2).mean();
       }},
      {"two forwards",
       [](TiedImpl& net, const torch::Tensor& x) {
         return net.forward(x).pow(2).mean() + net.forward(x + 1).pow(2).mean();
       }},
      {"checkpointed, and used outside",
       [](TiedImpl& net, const torch::Tensor& x) {
         const auto whole = [&net](const torch::Tensor& y) { return net.forward(y); };
         return net.forward(checkpoint(whole, x)).pow(2).mean() + net.layer->weight.pow(2).mean();
       }},
      {"slope", [](TiedImpl& net,
                   const torch::Tensor& x) { return net.forward(x).mean() + 10 * slope(net, x); }},
      {"steepness",
       [](TiedImpl& net, const torch::Tensor& x) {
         return net.forward(x).pow(2).mean() + 0.1 * steepness(net, x);
       }},
      {"steepness alone",
       [](TiedImpl& net, const torch::Tensor& x) {
         return steepness(net, x) + net.last->bias.sum();
       }},
  };
  return all;
}

// The mean over workers of the gradients, `passes` times, by plain LibTorch.
std::vector<torch::Tensor> plain_mean(const Loss& loss, int workers, int passes = 1) {
  auto net = seeded<Tied>(kSeed);
  for (int rank = 0; rank < workers; ++rank)
    (passes * loss(*net, batch_of(rank)) / workers).backward();
  return gradients(*net);
}

void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_LT(largest_difference(a[i], b[i]), 1e-6 * (1 + b[i].abs().max().item<double>())) << i;
}

TEST(Graphs, TheDropInAveragesEveryParameterOnce) {
  for (const auto& [name, loss] : losses()) {
    SCOPED_TRACE(name);
    const auto expected = plain_mean(loss, 2);
    for (const std::string& engine : cpu_engines()) {
      for (const auto missing : {MissingGradient::kError, MissingGradient::kZero}) {
        in_world(2, engine, [&](World& world) {
          auto model = data_parallel(seeded<Tied>(kSeed), world,
                                     {.missing_gradient = missing, .bucket_bytes = 100});
          for (int pass = 0; pass < 2; ++pass) {
            model.zero_grad();
            loss(*model, batch_of(world.rank())).backward();
            expect_close(gradients(*model), expected);
          }
          model.zero_grad();
          backward(loss(*model, batch_of(world.rank())), 6);
          expect_close(gradients(*model), expected);
        });
      }
    }
  }
}

// The same losses in a Step of one worker and of two; the update is plain LibTorch's.
TEST(Graphs, AStepAddsEveryParameterOnce) {
  const auto data = torch::cat({batch_of(0), batch_of(1)});
  for (const auto& [name, loss] : losses()) {
    SCOPED_TRACE(name);
    const auto expected = plain_mean(loss, 2);
    for (const int workers : {1, 2}) {
      in_world(workers, workers == 1 ? "thread" : "shm", [&](World& world) {
        auto net = seeded<Tied>(kSeed);
        auto model = data_parallel(net, world);
        const auto before = seeded<Tied>(kSeed);
        optim::SGD optimizer(model, {.lr = 1});
        Job job(world, {.global_batch = 12, .shards = 2, .seed = kSeed});
        // Shards have samples in another order; the losses are means over the first or last six.
        Step step(job, "train", {&optimizer},
                  [&](const Shard& shard) { return loss(*net, batch_of(shard.index)); });
        for (const GlobalBatch& batch :
             job.batches(tensor_dataset(data, torch::zeros({12})), {.steps = 1}))
          step(batch);
        std::vector<torch::Tensor> moved;
        for (std::size_t i = 0; i < expected.size(); ++i)
          moved.push_back(before->parameters()[i].detach() - net->parameters()[i].detach());
        expect_close(moved, expected);
      });
    }
  }
}

// As with DDP: each pass adds an average.
TEST(Graphs, TwoPassesOverOneGraphAddUp) {
  const Loss& loss = losses()[0].second;
  for (const std::string& engine : cpu_engines()) {
    in_world(2, engine, [&](World& world) {
      auto model = data_parallel(seeded<Tied>(kSeed), world);
      model.zero_grad();
      const auto graph = loss(*model, batch_of(world.rank()));
      graph.backward({}, /*retain_graph=*/true);
      graph.backward();
      expect_close(gradients(*model), plain_mean(loss, 2, 2));
      model.zero_grad();
      const auto weighted = loss(*model, batch_of(world.rank()));
      {
        const auto scope = model.no_sync();
        backward(weighted, 6);
      }
      EXPECT_THROW(weighted.backward(), c10::Error) << "the graph is gone";
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::graphs
