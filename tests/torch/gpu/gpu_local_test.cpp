// Local and asynchronous steps on a real GPU, beside plain LibTorch's and the CPU's: `make test-gpu` runs it.
// gpu_local_steps.sh and gpu_asynchronous.sh have them on several workers.
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <memory>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "plan/order.h"
#include "tests/torch/asynchronous_jobs.h"
#include "tests/torch/folder.h"
#include "tests/torch/local_jobs.h"
#include "tests/torch/nets.h"

namespace lockstep::testing::gpu_local {
namespace {

using loops::LocalHow;

constexpr Device kGpu{DeviceKind::kCuda, 0};

// Each operation rounds once on both sides, so mostly they have the same bits. But a matrix product may be another kernel for
// memory that is aligned otherwise, and AdamW makes more of a difference than SGD does.
TEST(GpuLocalSteps, HaveTheNumbersOfThePlainProgram) {
  struct Case {
    LocalHow how;
    double most;
  };
  const std::vector<Case> cases = {
      {{.local = LocalSteps::sgd(3), .optimizer = "sgd"}, 1e-6},
      {{.local = LocalSteps::diloco(2), .optimizer = "sgd"}, 1e-6},
      {{.local = LocalSteps::diloco(2), .optimizer = "adamw"}, 1e-5},
      {{.local = LocalSteps::post_local_sgd(2, 2), .optimizer = "adamw"}, 1e-5},
  };
  for (const auto& [how, most] : cases) {
    SCOPED_TRACE(to_string(how.local) + ", " + how.optimizer);
    World world = World::over(connect_alone(), kGpu);
    std::vector<torch::Tensor> weights;
    loops::trained(world, how, &weights);
    const auto expected = loops::trained_plainly(how, torch::Device(torch::kCUDA, 0));
    EXPECT_LT(loops::distance(weights, expected), most);
  }
}

// The module's own tensors after one round, or two: a batch norm's statistics are the mean over shards. The third batch would
// be a short one, and a batch norm wants two samples.
std::vector<torch::Tensor> statistics_on(Device device, const LocalSteps& local) {
  World world = World::over(connect_alone(), device);
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(10, 8), torch::nn::BatchNorm1d(8),
                            torch::nn::Linear(8, 1));
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = 0.01});
  loops::Job job(world, loops::options_of({.local = local}));
  Step step(job, "train", {&optimizer},
            [&](const Shard& shard) { return net->forward(shard.batch.data).pow(2).mean(); });
  for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 2})) step(batch);
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& buffer : net->buffers())
    all.push_back(buffer.to(torch::kCPU, torch::kFloat64));
  return all;
}

TEST(GpuLocalSteps, GiveBuffersTheMeanOverShardsAsOnTheCpu) {
  for (const LocalSteps& local :
       {LocalSteps::sgd(2), LocalSteps::sgd(1), LocalSteps::streaming_diloco(2, 2)}) {
    const auto here = statistics_on(Device{}, local);
    EXPECT_GT(here[0].abs().max().item<double>(), 1e-3);
    EXPECT_LT(loops::distance(here, statistics_on(kGpu, local)), 1e-5) << to_string(local);
  }
}

// The host hears of a norm some steps later, and other shards have their turns in between.
TEST(GpuLocalSteps, ANormThatIsNotFiniteEndsTheJob) {
  World world = World::over(connect_alone(), kGpu);
  auto net = loops::net_of("mlp");
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = 0.1});
  optimizer.set_clip_norm(1);
  loops::Job job(world, loops::options_of({.local = LocalSteps::sgd(2)}));
  Step step(job, "train", {&optimizer}, [&](const Shard& shard) {
    const auto loss = models::loss(*net, shard.batch);
    if (shard.step != 3 || shard.index != 1) return loss;
    return loss + (net->parameters()[0].sum() * 0).sqrt();  // 0, with the slope NaN
  });
  std::int64_t done = 0;
  const auto train = [&] {
    for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 12})) {
      step(batch);
      done = batch.step() + batch.steps();
    }
  };
  EXPECT_THROW(train(), BadInput);
  EXPECT_GE(done, 2);
  EXPECT_LE(done, 4);
}

TEST(GpuLocalSteps, ReportLossesAndMetricsOfAllSteps) {
  for (const std::int64_t length : {1, 3}) {
    World world = World::over(connect_alone(), kGpu);
    auto net = loops::net_of("mlp");
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.1});
    loops::Job job(world, loops::options_of({.local = LocalSteps::sgd(length)}));
    Step step(job, "train", {&optimizer}, [&](const Shard& shard) {
      const auto loss = models::loss(*net, shard.batch);
      const auto samples = static_cast<double>(shard.batch.samples);
      shard.report("loss", loss.detach() * samples);
      shard.report("steps", static_cast<double>(shard.step) * samples, samples);
      return loss;
    });
    std::vector<loops::Outcome> outcomes;
    for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 6})) {
      outcomes.push_back(step(batch));
      if (length == 1) continue;  // these are read a step later
      EXPECT_NEAR(outcomes.back().loss(), outcomes.back().metric("loss"), 1e-5);
    }
    for (const loops::Outcome& outcome : outcomes) {
      EXPECT_NEAR(outcome.loss(), outcome.metric("loss"), 1e-5);
      const auto first = static_cast<double>(outcome.step);
      EXPECT_GE(outcome.metric("steps"), first);
      EXPECT_LE(outcome.metric("steps"), first + static_cast<double>(length - 1));
    }
  }
}

// Gradients come from the GPU, and updates are computed on the host, as on CPUs.
TEST(GpuAsynchronousSteps, HaveTheNumbersOfThePlainProgramForAnyOrder) {
  using loops::asynchronous::kOrder;
  using loops::asynchronous::with;
  const LocalSteps free = LocalSteps::stale(Asynchronous::kUnbounded, 3);
  for (const std::string optimizer : {"sgd", "adamw"}) {
    for (const LocalSteps& local : {free, with(free, true, 0), with(free, false, 0.5)}) {
      SCOPED_TRACE(optimizer + ", " + to_string(local));
      const Folder folder;
      const LocalHow how{.local = local, .optimizer = optimizer, .steps = 2};
      base::write_file(folder / "order",
                       loops::asynchronous::head_of(how, kGpu) + plan::order_text(kOrder));
      std::vector<torch::Tensor> weights;
      World world = World::over(connect_alone(), kGpu);
      loops::trained(world, loops::asynchronous::replaying(how, folder / "order"), &weights);
      const loops::asynchronous::Plain plain(how, kOrder, torch::Device(torch::kCUDA, 0));
      EXPECT_LT(loops::distance(weights, plain.weights), optimizer == "adamw" ? 1e-5 : 1e-6);
    }
  }
}

// With one shard a round of asynchronous steps is what the shard's own steps are. So buffers are those of a round of local steps,
// whose state is on the GPU.
TEST(GpuAsynchronousSteps, HaveTheBuffersOfTheLastUpdate) {
  const auto statistics_of = [](const LocalSteps& local) {
    World world = World::over(connect_alone(), kGpu);
    auto net = loops::net_of("cnn");
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.01});
    loops::Job job(world, loops::options_of({.local = local, .shards = 1}));
    Step step(job, "train", {&optimizer},
              [&](const Shard& shard) { return models::loss(*net, shard.batch); });
    for (const GlobalBatch& batch : job.batches(loops::data_of("cnn"), {.steps = 2})) step(batch);
    std::vector<torch::Tensor> all;
    for (const torch::Tensor& buffer : net->buffers())
      all.push_back(buffer.to(torch::kCPU, torch::kFloat64));
    return all;
  };
  const auto expected = statistics_of(LocalSteps::sgd(2));
  ASSERT_FALSE(expected.empty());
  EXPECT_LT(loops::distance(statistics_of(LocalSteps::stale(1, 2)), expected), 1e-6);
}

TEST(GpuAsynchronousSteps, AGradientThatIsNotFiniteEndsTheJob) {
  World world = World::over(connect_alone(), kGpu);
  auto net = loops::net_of("mlp");
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = 0.1});
  optimizer.set_clip_norm(1);
  loops::Job job(world, loops::options_of({.local = LocalSteps::stale(2, 2)}));
  Step step(job, "train", {&optimizer}, [&](const Shard& shard) {
    const auto loss = models::loss(*net, shard.batch);
    return shard.step == 3 ? loss + (net->parameters()[0].sum() * 0).sqrt() : loss;
  });
  std::int64_t done = 0;
  const auto train = [&] {
    for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = 6})) {
      step(batch);
      done = batch.step() + batch.steps();
    }
  };
  EXPECT_THROW(train(), BadInput);
  EXPECT_EQ(done, 2);
}

}  // namespace
}  // namespace lockstep::testing::gpu_local
