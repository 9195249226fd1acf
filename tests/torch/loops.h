// Programs with a loop of their own, for tests of Job and Step. Workers are threads of this process.
#pragma once

#include <gtest/gtest.h>
#include <lockstep/step.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/torch/nets.h"
#include "torch/models/models.h"

namespace lockstep::testing::loops {

// Not those of other tests.
using lockstep::Job;
using lockstep::Outcome;

inline constexpr std::uint64_t kSeed = 11;
inline constexpr std::int64_t kClasses = 4;
inline constexpr std::int64_t kSamples =
    35;  // batches of 16, 16 and 3: the last leaves five of 8 shards empty
inline constexpr std::int64_t kSteps = 7;  // two epochs, and one more

inline JobOptions job_options(const std::string& checkpoint = "") {
  return {.global_batch = 16, .shards = 8, .seed = kSeed, .checkpoint = checkpoint};
}

// What every worker of a world returns, which must be the same.
template <typename Body>
std::string same_on_all(int workers, const std::string& engine, const Body& body) {
  std::mutex mutex;
  std::set<std::string> results;
  in_world(workers, engine, [&](World& world) {
    const std::string result = body(world);
    const std::lock_guard lock(mutex);
    results.insert(result);
  });
  EXPECT_EQ(results.size(), 1U) << workers << " workers, " << engine;
  return *results.begin();
}

// On 1 to 8 workers, with every engine.
template <typename Body>
void expect_everywhere(const std::string& expected, const Body& body) {
  for (const std::string& engine : cpu_engines()) {
    for (const int workers : {1, 2, 3, 4, 8}) {
      if (workers == 1 && engine != "thread") continue;
      EXPECT_EQ(same_on_all(workers, engine, body), expected) << workers << " workers, " << engine;
    }
  }
}

inline DataShape shape_of(const std::string& model) {
  if (model == "gpt") return {{6}, 12, true};
  if (model == "cnn") return {{1, 8, 8}, kClasses, false};
  return {{10}, kClasses, false};
}

inline DatasetPtr data_of(const std::string& model) {
  const DataShape shape = shape_of(model);
  auto generator = at::detail::createCPUGenerator(kSeed);
  std::vector<std::int64_t> sizes = shape.sample;
  sizes.insert(sizes.begin(), kSamples);
  if (model == "gpt") {
    const auto tokens = torch::randint(shape.classes, sizes, generator, torch::kInt64);
    return tensor_dataset(tokens, tokens.roll(-1, 1));
  }
  return tensor_dataset(torch::randn(sizes, generator),
                        torch::randint(kClasses, {kSamples}, generator, torch::kInt64));
}

inline std::shared_ptr<models::Net> net_of(const std::string& model) {
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(kSeed);
  if (model == "mlp") return models::make_mlp(shape_of(model), 24);
  return models::make({.name = model}, shape_of(model));
}

// One model with its optimizer.
struct One {
  One(World& world, const std::string& name, double lr = 1e-2)
      : net(net_of(name)), model(data_parallel(net, world)), optimizer(model, {.lr = lr}) {}

  Step::Loss loss() const {
    return [net = net](const Shard& shard) { return models::loss(*net, shard.batch); };
  }

  std::shared_ptr<models::Net> net;
  DataParallel<std::shared_ptr<models::Net>> model;
  optim::AdamW optimizer;
};

inline std::string trained_by_loop(World& world, const std::string& name) {
  Job job(world, job_options());
  One one(world, name);
  Step step(job, "train", {&one.optimizer}, one.loss());
  for (const GlobalBatch& batch : job.batches(data_of(name), {.steps = kSteps})) step(batch);
  EXPECT_EQ(job.step(), kSteps);
  return job.weights_sha256();
}

// A layer between two others that keeps a running mean, and drops out.
struct NoisyImpl : torch::nn::Module {
  NoisyImpl(std::int64_t inputs, std::int64_t outputs)
      : first(register_module("first", torch::nn::Linear(inputs, 16))),
        second(register_module("second", torch::nn::Linear(16, outputs))),
        mean(register_buffer("mean", torch::zeros({16}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    auto hidden = torch::tanh(first(x));
    if (is_training()) {
      torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(hidden.mean(0), 0.1);
    }
    hidden = hidden - mean;
    return second(torch::dropout(hidden, 0.3, is_training()));
  }
  torch::nn::Linear first, second;
  torch::Tensor mean;
};
TORCH_MODULE(Noisy);

// A GAN: two Steps on every batch. The critic reads the generator, whose buffers change with it.
struct Gan {
  explicit Gan(World& world, JobOptions options = job_options(), double penalty = 0)
      : job(world, options),
        generator(data_parallel(seeded<Noisy>(kSeed, 3, 10), world, {.name = "generator"})),
        critic(data_parallel(seeded<Noisy>(kSeed + 1, 10, 1), world, {.name = "critic"})),
        of_generator(generator, {.lr = 1e-2}),
        of_critic(critic, {.lr = 1e-2, .momentum = 0.9}),
        d_step(job, "critic", {&of_critic},
               [this, penalty](const Shard& shard) {
                 const auto made = fake(shard).detach();
                 auto loss = (critic(made) - critic(shard.batch.data)).mean();
                 return penalty > 0 ? loss + penalty * slope(shard.batch.data) : loss;
               }),
        g_step(job, "generator", {&of_generator},
               [this](const Shard& shard) { return -critic(fake(shard)).mean(); }) {}

  torch::Tensor fake(const Shard& shard) {
    return generator(torch::randn({shard.batch.samples, 3}, shard.batch.data.options()));
  }
  // How far the critic's gradient is from 1.
  torch::Tensor slope(const torch::Tensor& real) {
    const auto at = real.detach().clone().requires_grad_(true);
    const auto gradient = torch::autograd::grad({critic(at).sum()}, {at}, {}, true, true)[0];
    return (gradient.norm(2, 1) - 1).pow(2).mean();
  }
  std::string run(std::int64_t steps) {
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = steps})) {
      d_step(batch);
      g_step(batch);
    }
    return job.weights_sha256();
  }

  Job job;
  DataParallel<Noisy> generator, critic;
  optim::AdamW of_generator;
  optim::SGD of_critic;
  Step d_step, g_step;
};

inline std::string gan_alone(double penalty = 0) {
  World alone = World::over(connect_alone());
  return Gan(alone, job_options(), penalty).run(kSteps);
}

}  // namespace lockstep::testing::loops
