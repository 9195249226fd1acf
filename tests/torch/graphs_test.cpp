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
using ::testing::AnyOf;
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
    });
  }
}

// What a program ports from Python: a function that runs its own backward inside of the pass.
struct Reentrant : torch::autograd::Function<Reentrant> {
  using Context = torch::autograd::AutogradContext;
  static inline thread_local Tied* net = nullptr;

  static torch::Tensor forward(Context* context, const torch::Tensor& x) {
    context->save_for_backward({x});
    return (*net)->layer(x);
  }
  static torch::autograd::variable_list backward(Context* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode with_graph(true);
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    (*net)->layer(x).backward(gradients[0]);
    return {x.grad()};
  }
};

// `used_outside`: as in Tied::forward().
torch::Tensor reentrant_loss(Tied& net, const torch::Tensor& x, bool used_outside) {
  Reentrant::net = &net;
  const auto hidden = torch::tanh(Reentrant::apply(net->last(x)));
  return used_outside ? hidden.matmul(net->layer->weight).pow(2).mean() : hidden.pow(2).mean();
}

std::vector<torch::Tensor> plain_reentrant() {
  auto net = seeded<Tied>(kSeed);
  for (int rank = 0; rank < 2; ++rank)
    (torch::tanh(net->layer(net->last(batch_of(rank)))).pow(2).mean() / 2).backward();
  return gradients(*net);
}

TEST(Graphs, APassInsideOfAPassAddsUpOrIsRefused) {
  const auto ends = [](MissingGradient missing, bool used_outside) {
    return outcomes_in_world(2, [=](World& world) {
      auto net = seeded<Tied>(kSeed);
      auto model = data_parallel(net, world, {.missing_gradient = missing});
      model.zero_grad();
      reentrant_loss(net, batch_of(world.rank()), used_outside).backward();
      expect_close(gradients(*model), plain_reentrant());
    });
  };
  for (const Outcome& outcome : ends(MissingGradient::kZero, false))
    EXPECT_FALSE(outcome.kind) << outcome.text;
  for (const Outcome& outcome : ends(MissingGradient::kError, false)) {
    EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    EXPECT_THAT(outcome.text, HasSubstr("no gradient for last.weight"));
  }
  for (const auto missing : {MissingGradient::kError, MissingGradient::kZero}) {
    for (const Outcome& outcome : ends(missing, true)) {
      EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
      EXPECT_THAT(outcome.text, HasSubstr("lockstep::checkpoint()"));
    }
  }
}

// Runs one step with this loss; how each worker ends.
std::vector<Outcome> stepped(MissingGradient missing,
                             const std::function<torch::Tensor(Tied&, const Shard&)>& loss) {
  return outcomes_in_world(2, [&](World& world) {
    auto net = seeded<Tied>(kSeed);
    auto model = data_parallel(net, world, {.missing_gradient = missing});
    optim::SGD optimizer(model, {.lr = 0.1});
    Job job(world, {.global_batch = 4, .shards = 4, .seed = kSeed});
    Step step(job, "train", {&optimizer}, [&](const Shard& shard) { return loss(net, shard); });
    const auto data = tensor_dataset(batch_of(0, 4), torch::zeros({4}));
    for (const GlobalBatch& batch : job.batches(data, {.steps = 2})) step(batch);
  });
}

TEST(Graphs, AStepRefusesPassesThatAreNotItsOwn) {
  for (const auto missing : {MissingGradient::kError, MissingGradient::kZero}) {
    const auto loss = [](Tied& net, const Shard& shard) {
      return net->forward(shard.batch.data).pow(2).mean();
    };
    for (const Outcome& outcome : stepped(missing, loss))
      EXPECT_FALSE(outcome.kind) << outcome.text;
    for (const Outcome& outcome : stepped(missing, [&](Tied&net, const Shard&shard) {
           const auto sum = loss(net, shard);
           sum.backward({}, /*retain_graph=*/true);
           return sum;
         })) {
      EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    }
    for (const Outcome& outcome : stepped(missing, [&](Tied&net, const Shard&shard) {
           return reentrant_loss(net, shard.batch.data, shard.index == 1);
         })) {
      EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
      EXPECT_THAT(outcome.text,
                  AnyOf(HasSubstr("lockstep::checkpoint()"), HasSubstr("no gradient")));
    }
  }
}

// autograd::grad() accumulates into nothing, so nothing is averaged.
TEST(Graphs, GradientsThatWereAskedForAreAveragedBySynchronize) {
  const auto take = [](Tied& net, const torch::Tensor& x) {
    auto parameters = net->parameters();
    const auto found = torch::autograd::grad({losses()[1].second(*net, x)}, parameters);
    for (std::size_t i = 0; i < found.size(); ++i) parameters[i].mutable_grad() = found[i];
  };
  for (const std::string& engine : cpu_engines()) {
    in_world(2, engine, [&](World& world) {
      auto net = seeded<Tied>(kSeed);
      auto model = data_parallel(net, world);
      for (int pass = 0; pass < 2; ++pass) {
        take(net, batch_of(world.rank()));
        model.synchronize();
        expect_close(gradients(*model), plain_mean(losses()[1].second, 2));
      }
    });
    for (const bool stock : {false, true}) {
      for (const Outcome& outcome : outcomes_in_world(
               2,
               [&](World& world) {
                 auto net = seeded<Tied>(kSeed);
                 auto model = data_parallel(net, world);
                 optim::SGD ours(model, {.lr = 0.1});
                 torch::optim::SGD stocks(net->parameters(), 0.1);
                 for (int step = 0; step < 3; ++step) {
                   take(net, batch_of(world.rank()));
                   stock ? static_cast<void>(stocks.step()) : ours.step();
                 }
                 if (stock) losses()[1].second(*net, batch_of(0)).backward();
               },
               engine)) {
        EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << stock;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing::graphs
