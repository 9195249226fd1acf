// Activation checkpoints: the same bits as without, in every kind of loop; and clear errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/activation_checkpoint.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <lockstep/trainer.h>

#include "tests/torch/loops.h"
#include "tests/torch/replica_cases.h"

namespace lockstep::testing::recompute {
namespace {

using loops::data_of;
using loops::job_options;
using loops::kClasses;
using loops::kSeed;
using ::testing::HasSubstr;

enum class Kept : std::uint8_t { kAll, kBlocks, kNested };

// Residual blocks with dropout and a running mean. The weight of the first is used again at the end.
struct BlocksImpl : torch::nn::Module {
  explicit BlocksImpl(Kept its_kept) : kept(its_kept) {
    for (int i = 0; i < 3; ++i) {
      const auto name = std::to_string(i);
      layers.push_back(register_module("layer" + name, torch::nn::Linear(16, 16)));
      means.push_back(register_buffer("mean" + name, torch::zeros({16})));
    }
  }
  torch::Tensor block(std::size_t i, const torch::Tensor& x) {
    auto hidden = torch::tanh(layers[i](x));
    {
      torch::NoGradGuard no_grad;
      means[i].mul_(0.9).add_(hidden.mean(0).to(torch::kFloat32), 0.1);
    }
    return x + torch::dropout(hidden - means[i], 0.3, is_training());
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    if (kept == Kept::kNested) {
      const auto all = [this](torch::Tensor y) {
        for (std::size_t i = 0; i < layers.size(); ++i) y = checkpointed(i, y);
        return y;
      };
      x = checkpoint(all, x, {.buffers = means});
    } else {
      for (std::size_t i = 0; i < layers.size(); ++i)
        x = kept == Kept::kAll ? block(i, x) : checkpointed(i, x);
    }
    return last(x).matmul(layers[0]->weight.slice(1, 0, kClasses).slice(0, 0, kClasses));
  }
  torch::Tensor checkpointed(std::size_t i, const torch::Tensor& x) {
    return checkpoint([this, i](const torch::Tensor& y) { return block(i, y); }, x,
                      {.buffers = {means[i]}});
  }

  Kept kept;
  std::vector<torch::nn::Linear> layers;
  std::vector<torch::Tensor> means;
  torch::nn::Linear first = register_module("first", torch::nn::Linear(10, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, kClasses));
};
TORCH_MODULE(Blocks);

torch::Tensor loss_of(BlocksImpl& net, const Batch& batch) {
  return torch::cross_entropy_loss(net.forward(batch.data).to(torch::kFloat32), batch.target);
}

Batch batch_of(std::uint64_t number) {
  const auto target = torch::arange(6).remainder(kClasses);
  return {samples(number, {6, 10}), target, 6};
}

std::vector<torch::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const auto& tensor : module.parameters()) all.push_back(tensor.detach().clone());
  for (const auto& tensor : module.buffers()) all.push_back(tensor.clone());
  return all;
}

void expect_same_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

std::vector<torch::Tensor> trained_plainly(Kept kept, bool half = false) {
  auto net = seeded<Blocks>(kSeed, kept);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  torch::manual_seed(kSeed);
  for (std::uint64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const Autocast scope(torch::kCPU, torch::kBFloat16, {.enabled = half});
      loss = loss_of(*net, batch_of(step));
    }
    const auto random = at::detail::getDefaultCPUGenerator().get_state();
    loss.backward();
    EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), random));
    optimizer.step();
  }
  return values_of(*net);
}

TEST(Checkpointing, APlainLoopHasTheSameBits) {
  for (const bool half : {false, true}) {
    const auto expected = trained_plainly(Kept::kAll, half);
    expect_same_bits(trained_plainly(Kept::kBlocks, half), expected);
    expect_same_bits(trained_plainly(Kept::kNested, half), expected);
  }
}

// Workers are threads here, and share a generator: all forwards come before all backwards.
std::vector<torch::Tensor> trained_by_drop_in(World& world, Kept kept, MissingGradient missing) {
  auto net = seeded<Blocks>(kSeed, kept);
  auto model = data_parallel(net, world, {.missing_gradient = missing, .bucket_bytes = 300});
  optim::SGD optimizer(model, {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    torch::Tensor loss;
    {
      const std::lock_guard lock(generator_mutex);
      torch::manual_seed(static_cast<std::uint64_t>(100 * step + world.rank()));
      loss = loss_of(*net, batch_of(static_cast<std::uint64_t>(10 * step + world.rank())));
    }
    world.comm().barrier().wait();
    step == 1 ? backward(loss, 6) : loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_TRUE(model.identical());
  return values_of(*net);
}

TEST(Checkpointing, TheDropInHasTheSameBits) {
  for (const std::string& engine : cpu_engines()) {
    for (const int workers : {1, 2}) {
      for (const auto missing : {MissingGradient::kError, MissingGradient::kZero}) {
        in_world(workers, engine, [&](World& world) {
          const auto expected = trained_by_drop_in(world, Kept::kAll, missing);
          expect_same_bits(trained_by_drop_in(world, Kept::kBlocks, missing), expected);
          expect_same_bits(trained_by_drop_in(world, Kept::kNested, missing), expected);
        });
      }
    }
  }
}

// With a second model, so that a pass is restricted to the parameters of one.
std::string trained_by_steps(World& world, Kept kept) {
  Job job(world, job_options());
  auto net = seeded<Blocks>(kSeed, kept);
  auto other = seeded<Blocks>(kSeed + 1, kept);
  auto model = data_parallel(net, world, {.name = "one"});
  auto other_model = data_parallel(other, world, {.name = "other"});
  optim::AdamW optimizer(model, {.lr = 1e-2});
  optim::AdamW other_optimizer(other_model, {.lr = 1e-2});
  Step step(job, "one", {&optimizer}, [&](const Shard& shard) {
    return loss_of(*net, shard.batch) + 0.1 * loss_of(*other, shard.batch);
  });
  Step other_step(job, "other", {&other_optimizer}, [&](const Shard& shard) {
    return loss_of(*other, shard.batch) + 0.1 * net->forward(shard.batch.data).mean();
  });
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 3})) {
    step(batch);
    other_step(batch);
  }
  return job.weights_sha256();
}

TEST(Checkpointing, AStepHasTheSameBits) {
  World alone = World::over(connect_alone());
  const std::string expected = trained_by_steps(alone, Kept::kAll);
  EXPECT_EQ(trained_by_steps(alone, Kept::kNested), expected);
  for (const std::string& engine : cpu_engines()) {
    const auto body = [](World& world) { return trained_by_steps(world, Kept::kBlocks); };
    EXPECT_EQ(loops::same_on_all(2, engine, body), expected) << engine;
  }
}

std::string trained_by_trainer(World& world, Kept kept) {
  auto net = seeded<Blocks>(kSeed, kept);
  auto model = data_parallel(net, world);
  auto optimizer = std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.1});
  TrainerParts parts{model, net.ptr(), optimizer, data_of("mlp")};
  parts.loss = [net](const Batch& batch) mutable { return loss_of(*net, batch); };
  const TrainerOptions options{.steps = 4, .global_batch = 16, .shards = 4, .seed = kSeed};
  return Trainer(world, parts, options).run().weights_sha256;
}

TEST(Checkpointing, ATrainerHasTheSameBits) {
  World alone = World::over(connect_alone());
  const std::string expected = trained_by_trainer(alone, Kept::kAll);
  EXPECT_EQ(trained_by_trainer(alone, Kept::kBlocks), expected);
  for (const std::string& engine : cpu_engines()) {
    const auto body = [](World& world) { return trained_by_trainer(world, Kept::kNested); };
    EXPECT_EQ(loops::same_on_all(2, engine, body), expected) << engine;
  }
}

// A holder brings the buffers of its module, which then count a batch once.
TEST(Checkpointing, AModuleBringsItsBuffers) {
  const auto trained = [](bool checkpointed) {
    torch::manual_seed(kSeed);
    torch::nn::Sequential net(torch::nn::Linear(8, 4), torch::nn::BatchNorm1d(4),
                              torch::nn::Dropout(0.5));
    for (std::uint64_t step = 0; step < 2; ++step) {
      const auto x = samples(step, {6, 8});
      (checkpointed ? checkpoint(net, x) : net->forward(x)).pow(3).sum().backward();
    }
    auto all = values_of(*net);
    for (const auto& gradient : replicas::gradients(*net)) all.push_back(gradient);
    return all;
  };
  expect_same_bits(trained(true), trained(false));
  torch::nn::Linear layer(8, 4);
  EXPECT_TRUE(torch::equal(checkpoint(layer, torch::ones({2, 8})), layer(torch::ones({2, 8}))));
}

TEST(Checkpointing, OnlyWhatTheFunctionUsesIsKept) {
  auto weight = torch::randn({64, 64}, torch::requires_grad());
  std::weak_ptr<torch::autograd::Node> inside;
  const auto y = checkpoint(
      [&](const torch::Tensor& x) {
        const auto hidden = torch::tanh(x.matmul(weight));
        inside = hidden.grad_fn();
        return hidden.exp();
      },
      torch::randn({2, 64}));
  EXPECT_TRUE(inside.expired());
  EXPECT_TRUE(y.requires_grad());
  y.sum().backward();
  EXPECT_TRUE(inside.expired());
  EXPECT_TRUE(weight.grad().defined());
}

TEST(Checkpointing, TakesAndReturnsWhatAFunctionMay) {
  auto weight = torch::randn({4}, torch::requires_grad());
  const auto unused = torch::randn({4}, torch::requires_grad());
  auto a = torch::randn({4}, torch::requires_grad());
  const auto numbers = torch::arange(4);
  using Tensors = std::vector<torch::Tensor>;
  const auto function = [&](const Tensors& in) -> Tensors {
    EXPECT_FALSE(in[2].defined());
    return {in[0] * weight, in[1] + 1, torch::Tensor(), in[0] * unused, in[0]};
  };
  const Tensors out = checkpoint(function, {a, numbers, torch::Tensor()});
  ASSERT_EQ(out.size(), 5U);
  EXPECT_FALSE(out[1].requires_grad());
  EXPECT_FALSE(out[2].defined());
  (out[0] + out[4]).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), a.detach()));
  EXPECT_TRUE(torch::equal(a.grad(), 1 + weight.detach()));
  EXPECT_FALSE(unused.grad().defined());
  const auto constant = checkpoint([](const torch::Tensor& x) { return x * 2; }, torch::ones({2}));
  EXPECT_FALSE(constant.requires_grad());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(function, {a, numbers, torch::Tensor()})[0].requires_grad());
}

// As without the checkpoint: a gradient that no worker has stays undefined.
TEST(Checkpointing, AnOutputThatIsNotUsedBringsNoGradient) {
  in_world(2, "shm", [](World& world) {
    auto net = seeded<TwoLayers>(kSeed, 8, 16, 16);
    auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
    using Tensors = std::vector<torch::Tensor>;
    const auto both = [&](const Tensors& in) -> Tensors {
      return {net->first(in[0]), net->second(net->first(in[0]))};
    };
    checkpoint(both, {samples(1, {6, 8})})[0].sum().backward();
    EXPECT_TRUE(net->first->weight.grad().defined());
    EXPECT_FALSE(net->second->weight.grad().defined());
  });
}

TEST(Checkpointing, HooksOfAParameterAreCalledOnce) {
  auto weight = torch::randn({4}, torch::requires_grad());
  weight.register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
  checkpoint([&](const torch::Tensor& x) { return x * weight; }, torch::ones({4})).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::full({4}, 2.0)));
}

TEST(Checkpointing, AKeptGraphMayBeUsedTwice) {
  auto weight = torch::ones({4}, torch::requires_grad());
  const auto sum =
      checkpoint([&](const torch::Tensor& x) { return torch::dropout(x * weight, 0.5, true); },
                 torch::ones({4}))
          .sum();
  sum.backward({}, /*retain_graph=*/true);
  const auto once = weight.grad().clone();
  sum.backward();
  EXPECT_TRUE(torch::equal(weight.grad(), 2 * once));
  EXPECT_THROW(sum.backward(), c10::Error);
}

template <typename Body>
void expect_refused(const std::string& text, const Body& body) {
  try {
    body();
    ADD_FAILURE() << "no error: " << text;
  } catch (const BadInput& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Checkpointing, WhatCannotBeRunAgainIsRefused) {
  auto weight = torch::ones({4}, torch::requires_grad());
  auto other = torch::ones({4}, torch::requires_grad());
  const auto x = torch::ones({4});
  const auto times = [&](const torch::Tensor& y) { return y * weight; };
  expect_refused("create_graph", [&] {
    torch::autograd::grad({checkpoint(times, x).pow(2).sum()}, {weight}, {}, true, true);
  });
  expect_refused("pass it in as an input", [&] {
    const auto outside = weight * 2;
    checkpoint([&](const torch::Tensor& y) { return y * outside; }, x);
  });
  expect_refused("in place", [&] {
    checkpoint([&](torch::Tensor y) { return y.mul_(2) * weight; }, x.clone());
  });
  expect_refused("changed after forward", [&] {
    const auto sum = checkpoint(times, x).sum();
    torch::NoGradGuard no_grad;
    weight.add_(1);
    sum.backward();
  });
  int runs = 0;
  expect_refused("other parameters", [&] {
    checkpoint([&](const torch::Tensor& y) { return y * (runs++ == 0 ? weight : other); }, x)
        .sum()
        .backward();
  });
  expect_refused("other shapes", [&] {
    checkpoint([&](const torch::Tensor& y) { return (y * weight).slice(0, runs++ % 2); }, x)
        .sum()
        .backward();
  });
  bool training = true;
  const auto dropped = checkpoint(
      [&](const torch::Tensor& y) { return torch::dropout(y * weight, 0.5, training); }, x);
  training = false;
  expect_refused("random numbers", [&] { dropped.sum().backward(); });
}

}  // namespace
}  // namespace lockstep::testing::recompute
