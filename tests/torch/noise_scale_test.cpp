// The noise scale of a Step: its numbers against plain LibTorch, and one number on every number of workers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/trainer.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "plan/noise_scale.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::noise_scale {
namespace {

using lockstep::Job;  // not those of other tests
using loops::same_on_all;
using ::testing::HasSubstr;

// Of plain LibTorch.
std::vector<torch::Tensor> gradients_of(TwoLayers& net, const Batch& batch) {
  const auto loss =
      torch::mse_loss(net(batch.data.to(torch::kFloat64)).sum(1), batch.target.to(torch::kFloat64));
  return torch::autograd::grad({loss}, net->parameters());
}
double squares_of(const std::vector<torch::Tensor>& gradients) {
  double sum = 0;
  for (const auto& gradient : gradients) sum += gradient.square().sum().item<double>();
  return sum;
}

// What the step on this batch measures, by the definition.
plan::NoiseEstimate by_definition(TwoLayers& net, const GlobalBatch& batch) {
  std::vector<double> squares;
  std::vector<torch::Tensor> mean;
  for (int shard = 0; shard < 8; ++shard) {
    const auto gradients = gradients_of(net, batch.shard(shard));
    squares.push_back(squares_of(gradients));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (shard == 0) mean.push_back(torch::zeros_like(gradients[i]));
      mean[i] += gradients[i] / 8;
    }
  }
  double small = 0;
  for (const double square : squares) small += square / 8;
  const double large = squares_of(mean);
  return {.noise = (small - large) / (1.0 / 2 - 1.0 / 16),
          .signal = (16 * large - 2 * small) / (16 - 2)};
}

// LibTorch forgets the hooks of a parameter whose type changes.
void lose_hook(torch::Tensor& parameter) {
  const auto values = parameter.detach().clone();
  parameter.set_data(values.to(torch::kFloat32));
  parameter.set_data(values);
}

// In float64, where sums over elements in another order differ by some roundings of 1e-16.
TEST(NoiseScale, HasTheNumbersOfItsDefinition) {
  for (const double clip_norm : {0.0, 1e-3}) {
    World alone = World::over(connect_alone());
    Job job(alone, loops::job_options());
    auto net =
        seeded<TwoLayers>(3, 10, 150, 3);  // parameters of several blocks, and of a part of one
    net->to(torch::kFloat64);
    auto model = data_parallel(net, alone);
    optim::SGD optimizer(model, {.lr = 0.01});
    optimizer.set_clip_norm(clip_norm);
    Step step(job, "train", {&optimizer},
              [&](const Shard& shard) {
                return torch::mse_loss(net(shard.batch.data.to(torch::kFloat64)).sum(1),
                                       shard.batch.target.to(torch::kFloat64));
              },
              {.noise_scale_every = 1});
    plan::NoiseSums sums;
    for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 5})) {
      TwoLayers plain = seeded<TwoLayers>(3, 10, 150, 3);
      plain->to(torch::kFloat64);
      for (std::size_t i = 0; i < plain->parameters().size(); ++i)
        plain->parameters()[i].data().copy_(net->parameters()[i]);
      if (batch.samples() == 16) sums.add(by_definition(plain, batch));  // not of a short batch
      if (batch.step() == 3) lose_hook(net->first->weight);
      const NoiseScale measured = step(batch).noise_scale();
      EXPECT_NEAR(measured.noise / sums.average().noise, 1, 1e-11) << batch.step();
      EXPECT_NEAR(measured.signal / sums.average().signal, 1, 1e-11) << batch.step();
    }
    EXPECT_EQ(sums.weight, 1 + 0.95 * (1 + 0.95 * (1 + 0.95)));
    EXPECT_EQ(optimizer.last_norm() > 0, clip_norm > 0);
  }
}

// The gradient of a sample is the sample itself, whose mean and covariance are known. 39 steps count in the average, so
// the standard deviation of the estimate is 2 %.
TEST(NoiseScale, FindsAKnownCovariance) {
  constexpr std::int64_t kNumbers = 40;
  const auto mean = torch::full({kNumbers}, std::sqrt(4.0 / kNumbers));  // |G|² is 4, tr Σ is 40
  const auto data = mean + samples(5, {8192, kNumbers});
  World alone = World::over(connect_alone());
  Job job(alone, {.global_batch = 64, .shards = 8, .seed = 1});
  torch::nn::Linear net(torch::nn::LinearOptions(kNumbers, 1).bias(false));
  auto model = data_parallel(net, alone);
  optim::SGD optimizer(model, {.lr = 0.01});
  Step step(job, "train", {&optimizer},
            [&](const Shard& shard) { return net(shard.batch.data).mean(); },
            {.noise_scale_every = 1});
  NoiseScale last;
  for (const GlobalBatch& batch :
       job.batches(tensor_dataset(data, torch::zeros({8192})), {.steps = 96}))
    last = step(batch).noise_scale();
  EXPECT_NEAR(last.noise, 40, 2);
  EXPECT_NEAR(last.signal, 4, 0.4);
  EXPECT_NEAR(*last.critical_batch(), 10, 1);
}

struct Noisy {
  std::int64_t every = 2;
  std::int64_t steps = loops::kSteps;
  torch::ScalarType type = torch::kFloat32;
  GradScaler* scaler = nullptr;
  std::int64_t overflows = -1;  // in which step
  std::string folder = {};
  std::string optimizer = "adamw";
};

// The weights; with `every` also the numbers after every step that this run has made.
std::string trained(World& world, const Noisy& run) {
  Job job(world, loops::job_options(run.folder));
  auto net = seeded<TwoLayers>(3, 10, 150, 4);  // parameters that cross slices
  net->to(run.type);
  auto model = data_parallel(net, world);
  optim::AdamW adamw(model, {.lr = 1e-2});
  optim::LAMB lamb(model, {.lr = 1e-2});
  optim::Optimizer& optimizer =
      run.optimizer == "lamb" ? static_cast<optim::Optimizer&>(lamb) : adamw;
  Step step(job, "train", {&optimizer},
            [&](const Shard& shard) {
              const auto output = net(shard.batch.data.to(run.type)).to(torch::kFloat32);
              const auto loss = torch::cross_entropy_loss(output, shard.batch.target);
              const bool overflows = shard.step == run.overflows && shard.index == 1;
              return overflows ? loss * std::numeric_limits<float>::infinity() : loss;
            },
            {.scaler = run.scaler, .noise_scale_every = run.every});
  std::string said;
  for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = run.steps})) {
    const auto outcome = step(batch);
    if (run.every == 0) continue;
    const NoiseScale scale = outcome.noise_scale();
    said = fmt::format("{:a} {:a} {}", scale.noise, scale.signal, scale.measured);
  }
  return job.weights_sha256() + " " + said;
}

std::string hash_in(const std::string& text) {
  return text.substr(0, text.find(' '));
}

TEST(NoiseScale, IsOneNumberOnAnyNumberOfWorkersAndChangesNoBit) {
  World alone = World::over(connect_alone());
  const std::string expected = trained(alone, {});
  EXPECT_EQ(hash_in(expected), hash_in(trained(alone, {.every = 0})));
  loops::expect_everywhere(expected, [](World& world) { return trained(world, {}); });
}

TEST(NoiseScale, IsOneNumberForHalfTypesAndLayerWiseRules) {
  for (const Noisy& run : {Noisy{.type = torch::kBFloat16}, Noisy{.optimizer = "lamb"}}) {
    World alone = World::over(connect_alone());
    const std::string expected = trained(alone, run);
    Noisy without = run;
    without.every = 0;
    EXPECT_EQ(hash_in(expected), hash_in(trained(alone, without)));
    for (const int workers : {3, 8}) {
      for (const std::string engine : {"shm", kTcpHosts})
        EXPECT_EQ(same_on_all(workers, engine, [&](World& world) { return trained(world, run); }),
                  expected);
    }
  }
}

// Powers of two change no bit of a gradient. A step that overflows changes neither weights nor averages.
TEST(NoiseScale, IsDividedByTheScaleAndLeavesOutWhatOverflows) {
  World alone = World::over(connect_alone());
  GradScaler scaler({.init_scale = 1024});
  EXPECT_EQ(trained(alone, {.scaler = &scaler}), trained(alone, {}));
  const auto overflowing = [](World& world, std::int64_t steps) {
    GradScaler own({.init_scale = 1024});
    return trained(world, {.steps = steps, .scaler = &own, .overflows = 4});
  };
  EXPECT_EQ(overflowing(alone, 5), overflowing(alone, 4));
  EXPECT_EQ(same_on_all(3, "shm", [&](World& world) { return overflowing(world, 7); }),
            overflowing(alone, 7));
}

TEST(NoiseScale, GoesOnFromACheckpointOnAnotherNumberOfWorkers) {
  World alone = World::over(connect_alone());
  const Folder folder;
  const auto on = [&](int workers, std::int64_t steps) {
    return same_on_all(workers, "shm", [&](World& world) {
      return trained(world, {.steps = steps, .folder = folder.path()});
    });
  };
  on(3, 3);
  on(1, 4);
  EXPECT_EQ(on(2, 7), trained(alone, {}));
  for (const std::int64_t every : {0, 3}) {
    try {
      trained(alone, {.every = every, .steps = 8, .folder = folder.path()});
      ADD_FAILURE() << every;
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("noise_scale"));
    }
  }
}

TEST(NoiseScale, EachOptimizerOfAStepHasItsOwn) {
  const auto measured = [](bool together, std::uint64_t seed) {
    World alone = World::over(connect_alone());
    Job job(alone, loops::job_options());
    auto a = data_parallel(seeded<TwoLayers>(seed, 10, 20, 4), alone, {.name = "a"});
    auto b = data_parallel(seeded<TwoLayers>(9, 10, 30, 4), alone, {.name = "b"});
    optim::SGD of_a(a, {.lr = 0.1});
    optim::SGD of_b(b, {.lr = 0.1});
    std::vector<optim::Optimizer*> both = {&of_b, &of_a};
    if (!together) both.erase(both.begin());
    Step step(job, "train", both,
              [&](const Shard& shard) {
                const auto loss =
                    torch::cross_entropy_loss(a->forward(shard.batch.data), shard.batch.target);
                if (!together) return loss;
                return loss +
                       torch::cross_entropy_loss(b->forward(shard.batch.data), shard.batch.target);
              },
              {.noise_scale_every = 1});
    NoiseScale of_first;
    NoiseScale of_last;
    for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 2})) {
      const auto outcome = step(batch);
      of_first = outcome.noise_scale();
      of_last = outcome.noise_scale(both.size() - 1);
    }
    EXPECT_EQ(of_first.noise != of_last.noise, together);
    return fmt::format("{:a} {:a}", of_last.noise, of_last.signal);
  };
  EXPECT_EQ(measured(true, 4), measured(false, 4));
}

TEST(NoiseScale, ATrainerReportsItInEveryStepAndAtTheEnd) {
  World alone = World::over(connect_alone());
  loops::One one(alone, "mlp");
  TrainerParts parts{one.model, one.net,
                     std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &one.optimizer),
                     loops::data_of("mlp")};
  parts.loss = [net = one.net](const Batch& batch) { return models::loss(*net, batch); };
  std::vector<NoiseScale> seen;
  TrainerHooks hooks;
  hooks.on_step = [&](const StepRecord& record) { seen.push_back(record.noise_scale.value()); };
  const TrainerOptions options{
      .steps = 4, .global_batch = 16, .shards = 8, .seed = loops::kSeed, .noise_scale_every = 3};
  const TrainingResult result = Trainer(alone, parts, options, hooks).run();
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_TRUE(seen[0].measured);
  EXPECT_EQ(seen[2].noise, seen[0].noise);
  EXPECT_NE(seen[3].noise, seen[0].noise);
  EXPECT_EQ(result.noise_scale->noise, seen[3].noise);
}

TEST(NoiseScale, WhatCannotBeMeasuredIsRefused) {
  const auto error_of = [](const JobOptions& options, const StepOptions& of_step,
                           double clip_value = 0) -> std::string {
    World alone = World::over(connect_alone());
    Job job(alone, options);
    loops::One one(alone, "mlp");
    one.optimizer.set_clip_value(clip_value);
    try {
      Step step(job, "train", {&one.optimizer}, one.loss(), of_step);
      for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 1}))
        step(batch).noise_scale();
    } catch (const BadInput& error) {
      return error.what();
    }
    return "no error";
  };
  const JobOptions usual = loops::job_options();
  const StepOptions measured{.noise_scale_every = 16};
  EXPECT_EQ(error_of(usual, measured), "no error");
  EXPECT_THAT(error_of(usual, {}), HasSubstr("not measured"));
  EXPECT_THAT(error_of(usual, {.noise_scale_every = -1}), HasSubstr("below 0"));
  EXPECT_THAT(error_of({.global_batch = 16, .shards = 1}, measured), HasSubstr("the job has one"));
  EXPECT_THAT(error_of(usual, {.weight = [](const Shard&) { return 1.0; }, .noise_scale_every = 1}),
              HasSubstr("weights"));
  EXPECT_THAT(error_of(usual, measured, 0.5), HasSubstr("clipping by value"));
}

}  // namespace
}  // namespace lockstep::testing::noise_scale
