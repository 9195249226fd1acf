// Learning rates in a loop with Steps, and what else a program has its checkpoints keep.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/schedule.h>
#include <lockstep/step.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/torch/folder.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::loops {
namespace {

TEST(OwnLoop, LearningRatesAreTheProgramsAndKept) {
  const auto hash = [](World& world, const std::string& folder, std::int64_t end) {
    Job job(world, job_options(folder));
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = end})) {
      step(batch);
      if (batch.step() == 1) one.optimizer.set_lr(2e-3);
    }
    return job.weights_sha256();
  };
  World alone = World::over(connect_alone());
  const std::string whole = hash(alone, "", kSteps);
  EXPECT_NE(whole, trained_by_loop(alone, "mlp"));
  const Folder folder;
  hash(alone, folder.path(), 4);
  EXPECT_EQ(same_on_all(2, "shm", [&](World& world) { return hash(world, folder.path(), kSteps); }),
            whole);
}

// A schedule has no state: a job that goes on asks for the rates of its own steps.
TEST(OwnLoop, FollowsAScheduleFromACheckpointOn) {
  const auto hash = [](World& world, const std::string& folder, std::int64_t end) {
    const Schedule rate = large_batch({.lr = 1e-3,
                                       .base_batch = 4,
                                       .global_batch = 16,
                                       .scaling = Scaling::kSquareRoot,
                                       .warmup_steps = 3,
                                       .then = [](double peak) {
                                         return lr_scheduler::PolynomialLR{peak, kSteps, 0.9};
                                       }});
    Job job(world, job_options(folder));
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, one.loss(), {.learning_rate = rate});
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = end})) {
      step(batch);
      EXPECT_EQ(one.optimizer.lr(), rate(batch.step()));
    }
    return job.weights_sha256();
  };
  World alone = World::over(connect_alone());
  const std::string whole = hash(alone, "", kSteps);
  const Folder folder;
  hash(alone, folder.path(), 2);
  EXPECT_EQ(same_on_all(2, "shm", [&](World& world) { return hash(world, folder.path(), kSteps); }),
            whole);
}

TEST(OwnLoop, CheckpointsKeepWhatTheProgramAsksFor) {
  const auto result = [](World& world, const std::string& folder, std::int64_t end) {
    Job job(world, job_options(folder));
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, one.loss());
    ReduceLROnPlateau plateau({.factor = 0.5, .patience = 1, .cooldown = 1});
    torch::Tensor lowest = torch::full({2}, -1.5, torch::kFloat64);
    job.keep("plateau", plateau);
    job.keep("lowest", lowest);
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = end})) {
      const double loss = step(batch).loss();
      one.optimizer.set_lr(plateau.step(10, one.optimizer.lr()));
      lowest[1] = std::min(lowest[1].item<double>(), -loss);
    }
    EXPECT_EQ(lowest[0].item<double>(), -1.5);
    return fmt::format("{} {} {} {}", job.weights_sha256(), one.optimizer.lr(),
                       lowest[1].item<double>(), fmt::join(plateau.state(), " "));
  };
  World alone = World::over(connect_alone());
  const std::string whole = result(alone, "", kSteps);
  for (const std::int64_t cut : {1, 4}) {
    const Folder folder;
    result(alone, folder.path(), cut);
    EXPECT_EQ(
        same_on_all(2, "shm", [&](World& world) { return result(world, folder.path(), kSteps); }),
        whole);
  }
}

TEST(OwnLoop, RefusesToKeepWhatACheckpointCannotHold) {
  World alone = World::over(connect_alone());
  Job job(alone, job_options());
  One one(alone, "mlp");
  Step step(job, "train", {&one.optimizer}, one.loss());
  EXPECT_THROW(job.keep("none", torch::Tensor()), BadInput);
  EXPECT_THROW(job.keep("", torch::zeros({1})), BadInput);
  EXPECT_THROW(job.keep("columns", torch::zeros({4, 4}).t().slice(0, 0, 4, 2)), BadInput);
  job.keep("once", torch::zeros({1}));
  EXPECT_THROW(job.keep("once", torch::zeros({1})), BadInput);
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 1})) step(batch);
  EXPECT_THROW(job.keep("late", torch::zeros({1})), BadInput);
}

// Where reduction and update are one pass, too.
TEST(OwnLoop, FollowsASchedulerOfLibTorch) {
  const auto hash = [](World& world) {
    Job job(world, job_options());
    One one(world, "mlp");
    torch::optim::StepLR scheduler(one.optimizer, 2, 0.1);
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 5})) {
      step(batch);
      scheduler.step();
    }
    EXPECT_NEAR(one.optimizer.lr(), 1e-4, 1e-12);
    return job.weights_sha256();
  };
  EXPECT_EQ(same_on_all(3, "thread", hash), same_on_all(2, "shm", hash));
}

}  // namespace
}  // namespace lockstep::testing::loops
