// Local steps: rounds in which each shard trains by itself. The result is that of the definition, on any number of workers and with
// every engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/autocast.h>
#include <lockstep/codec.h>
#include <lockstep/errors.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/local_steps.h>
#include <lockstep/step.h>
#include <lockstep/stream.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch/folder.h"
#include "tests/torch/local_jobs.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::loops {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using How = LocalHow;

LocalSteps with_state(LocalSteps local, LocalState state) {
  local.state = state;
  return local;
}

// Everything that a job with local steps can be.
std::map<std::string, How> kinds() {
  return {
      {"local SGD", {}},
      {"of one step", {.local = LocalSteps::sgd(1)}},
      {"longer than the job", {.local = LocalSteps::sgd(100)}},
      {"post-local SGD", {.local = LocalSteps::post_local_sgd(2, 4), .optimizer = "sgd"}},
      {"DiLoCo", {.local = LocalSteps::diloco(2)}},
      {"averaged state", {.local = with_state(LocalSteps::diloco(2), LocalState::kAveraged)}},
      {"reset state",
       {.local = with_state(LocalSteps::sgd(2), LocalState::kReset), .optimizer = "adagrad"}},
      {"clipped", {.optimizer = "clipped"}},
      {"BatchNorm and dropout", {.model = "cnn"}},
      {"gpt", {.local = LocalSteps::diloco(2), .model = "gpt"}},
      {"with a codec", {.local = LocalSteps::diloco(2), .codec = "int8"}},
  };
}

TEST(LocalStepsJob, HasOneHashOnAnyNumberOfWorkersWithEveryEngine) {
  expect_one_hash_each(kinds());
}

TEST(LocalStepsJob, GoesOnFromItsCheckpointOnAnotherNumberOfWorkers) {
  for (auto [name, how] : kinds()) {
    SCOPED_TRACE(name);
    how.steps = 8;
    how.local.stages.back().steps = 2;
    how.checkpoint = {};
    const std::string expected = trained_alone(how);
    for (const auto& [engine, workers] : {std::pair("tcp", 2), std::pair("shm", 4)}) {
      const Folder folder;
      How part = how;
      part.checkpoint = folder / "run";
      part.steps = 4;
      same_on_all(3, "tcp", [&](World& world) { return trained(world, part); });
      part.steps = how.steps;
      EXPECT_EQ(same_on_all(workers, engine, [&](World& world) { return trained(world, part); }),
                expected)
          << engine;
    }
  }
}

// A stream of one shard; samples are a function of place and number.
class Counted : public Stream {
 public:
  explicit Counted(const StreamPlace& place) : place_(place) {}
  std::optional<torch::data::Example<>> next() override {
    const std::int64_t value = place_.shard * 1000 + place_.pass * 100 + next_++;
    auto own = at::detail::createCPUGenerator(place_.seed + static_cast<std::uint64_t>(value));
    return torch::data::Example<>(torch::randn({10}, own), torch::tensor(value % kClasses));
  }
  std::optional<std::int64_t> position() const override { return next_; }
  void seek(std::int64_t position) override { next_ = position; }

 private:
  StreamPlace place_;
  std::int64_t next_ = 0;
};

TEST(LocalStepsJob, OfStreamsGoesOnInTheMiddle) {
  const auto hash = [](World& world, const How& how) {
    const auto data =
        stream_dataset([](const StreamPlace& place) { return std::make_unique<Counted>(place); });
    Job job(world, options_of(how));
    One one(world, how.model);
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data, {.steps = how.steps})) step(batch);
    return job.weights_sha256();
  };
  How how{.steps = 9};
  const std::string expected =
      same_on_all(1, "thread", [&](World& world) { return hash(world, how); });
  EXPECT_EQ(same_on_all(3, "shm", [&](World& world) { return hash(world, how); }), expected);
  const Folder folder;
  how.checkpoint = folder / "run";
  how.steps = 3;
  same_on_all(2, "tcp", [&](World& world) { return hash(world, how); });
  how.steps = 9;
  EXPECT_EQ(same_on_all(4, "shm", [&](World& world) { return hash(world, how); }), expected);
}

// How far the job's weights are from those of the plain program.
double difference(const How& how) {
  std::vector<torch::Tensor> weights;
  same_on_all(2, "shm", [&](World& world) { return trained(world, how, &weights); });
  return distance(weights, trained_plainly(how, torch::kCPU));
}

TEST(LocalStepsJob, HasTheBitsOfThePlainProgram) {
  for (const std::string optimizer : {"plain", "sgd", "adamw"}) {
    SCOPED_TRACE(optimizer);
    EXPECT_EQ(difference({.optimizer = optimizer}), 0);
    EXPECT_EQ(difference({.local = LocalSteps::sgd(1), .optimizer = optimizer}), 0);
    EXPECT_EQ(difference({.local = LocalSteps::post_local_sgd(2, 2), .optimizer = optimizer}), 0);
    EXPECT_EQ(difference({.local = LocalSteps::diloco(2), .optimizer = optimizer}), 0);
  }
  LocalSteps heavy = LocalSteps::sgd(3);
  heavy.outer_lr = 0.5;
  heavy.outer_momentum = 0.3;
  EXPECT_EQ(difference({.local = heavy}), 0);
}

// The mean over shards of (momentum and weights) is linear: with averaged state, rounds of one step are synchronous SGD.
TEST(LocalStepsJob, OfOneStepWithAveragedMomentumIsTheSynchronousJob) {
  const auto weights = [](const LocalSteps& local) {
    std::vector<torch::Tensor> all;
    same_on_all(1, "thread", [&](World& world) {
      return trained(world, {.local = local, .optimizer = "sgd", .steps = 2}, &all);
    });
    for (torch::Tensor& tensor : all) tensor = tensor.flatten();
    return torch::cat(all);
  };
  const auto local = weights(with_state(LocalSteps::sgd(1), LocalState::kAveraged));
  EXPECT_LT((local - weights({})).abs().max().item<double>(), 1e-6);
}

// What a program sees: rounds as batches, steps by their numbers, a loss and metrics over all of a round.
TEST(LocalStepsLoop, ABatchIsARound) {
  in_world(2, "shm", [&](World& world) {
    How how{.local = LocalSteps::sgd(4)};
    Job job(world, options_of(how));
    One one(world, how.model);
    std::vector<std::int64_t> steps;
    Step step(job, "train", {&one.optimizer},
              [&](const Shard& shard) {
                if (shard.index == 3) steps.push_back(shard.step);
                const auto loss = models::loss(*one.net, shard.batch);
                shard.report("loss", loss.detach() * shard.batch.samples);
                return loss;
              },
              {.learning_rate = [](std::int64_t number) {
                return 1e-3 * static_cast<double>(number + 1);
              }});
    std::vector<std::int64_t> first, lengths, samples;
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 7})) {
      first.push_back(batch.step());
      lengths.push_back(batch.steps());
      samples.push_back(batch.samples());
      EXPECT_EQ(batch.ends_epoch(), true);  // of three steps
      EXPECT_EQ(batch.epoch(), batch.step() == 0 ? 0 : 1);
      const Outcome outcome = step(batch);
      EXPECT_NEAR(outcome.loss(), outcome.metric("loss"), 1e-6);
      EXPECT_EQ(one.optimizer.lr(), 1e-3 * static_cast<double>(batch.step() + batch.steps()));
      EXPECT_EQ(one.optimizer.steps(), batch.step() + batch.steps());
      EXPECT_THROW(batch.shard(0, batch.steps()), BadInput);
    }
    EXPECT_THAT(first, ElementsAre(0, 4));
    EXPECT_THAT(lengths, ElementsAre(4, 3));
    EXPECT_THAT(samples, ElementsAre(16 + 16 + 3 + 16, 16 + 3 + 16));
    if (world.rank() == 1) {
      EXPECT_THAT(steps, ElementsAre(0, 1, 3, 4, 6));  // none in short batches
    }
    EXPECT_TRUE(one.model.identical());
  });
}

// Between two rounds the module has the weights of the exchange, on every worker.
TEST(LocalStepsLoop, TheModelHasTheWeightsOfTheLastExchange) {
  const How how{.local = LocalSteps::diloco(2)};
  std::vector<std::vector<std::string>> seen(2);
  in_world(2, "tcp", [&](World& world) {
    Job job(world, options_of(how));
    One one(world, how.model);
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = kSteps})) {
      step(batch);
      double sum = 0;
      for (const torch::Tensor& parameter : one.net->parameters())
        sum += parameter.sum().item<double>();
      seen[static_cast<std::size_t>(world.rank())].push_back(job.weights_sha256() +
                                                             std::to_string(sum));
    }
  });
  EXPECT_EQ(seen[0].size(), 4U);
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(LocalStepsLoop, WhatTheProgramWritesBetweenTwoLoopsCounts) {
  in_world(2, "shm", [&](World& world) {
    const How how;
    Job job(world, options_of(how));
    One one(world, how.model);
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 3})) step(batch);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : one.net->parameters()) parameter.fill_(0.25);
    }
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 6})) {
      for (const torch::Tensor& parameter : one.net->parameters())
        EXPECT_TRUE(parameter.eq(0.25).all().item<bool>());
      step(batch);
    }
  });
}

// In a short batch, with one shard on each worker, some worker has no samples.
TEST(LocalStepsLoop, AWorkerWithoutSamplesFollowsTheLearningRate) {
  for (const std::int64_t length : {1, 3}) {
    std::set<std::string> all;
    for (const int workers : {1, 4}) {
      all.insert(same_on_all(workers, "shm", [&](World& world) {
        const How how{.local = LocalSteps::sgd(length)};
        Job job(world, options_of(how));
        One one(world, how.model);
        Step step(job, "train", {&one.optimizer}, one.loss(),
                  {.learning_rate = [](std::int64_t number) {
                    return 1e-3 * static_cast<double>(number + 1);
                  }});
        for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = kSteps}))
          step(batch);
        return job.weights_sha256();
      }));
    }
    EXPECT_EQ(all.size(), 1U) << "rounds of " << length;
  }
}

// Nobody announces the steps of shards, so the exchange does.
TEST(LocalStepsLoop, WorkersThatSetOtherRatesOrLimitsDoNotTrain) {
  for (const bool rates : {true, false}) {
    const auto outcomes = outcomes_in_world(2, [&](World& world) {
      const How how;
      Job job(world, options_of(how));
      One one(world, how.model);
      Step step(job, "train", {&one.optimizer}, one.loss());
      for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 9})) {
        step(batch);
        if (rates)
          one.optimizer.set_lr(1e-3 * (1 + world.rank()));
        else
          one.optimizer.set_clip_norm(1 + world.rank());
      }
    });
    for (const auto& outcome : outcomes)
      EXPECT_THAT(outcome.text, HasSubstr(rates ? "learning rates" : "clipping"));
  }
}

TEST(LocalStepsLoop, EndsAfterTheNextRoundIfItIsToldToStop) {
  in_world(2, "shm", [&](World& world) {
    const How how{.local = LocalSteps::sgd(2)};
    Job job(world, options_of(how));
    One one(world, how.model);
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 20})) {
      step(batch);
      if (batch.step() == 2) job.request_stop();
    }
    EXPECT_EQ(job.step(), 6);
    EXPECT_TRUE(job.stopped());
  });
}

// Autocast keeps cast weights until its scope ends: also when a program evaluates between two rounds, or steps.
TEST(LocalStepsLoop, AnEvaluationUnderAutocastHasTheWeightsOfAllShards) {
  const WithoutOneDnn without_onednn;
  for (const std::int64_t length : {1, 3}) {
    World world = World::over(connect_alone());
    const How how{.local = LocalSteps::sgd(length)};
    Job job(world, options_of(how));
    One one(world, how.model);
    const Autocast around(torch::kCPU, torch::kBFloat16);
    Step step(job, "train", {&one.optimizer}, one.loss());
    std::vector<std::int64_t> sizes = shape_of(how.model).sample;
    sizes.insert(sizes.begin(), 1);
    const torch::Tensor input = torch::ones(sizes);
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = kSteps})) {
      step(batch);
      const torch::NoGradGuard no_grad;
      const torch::Tensor found = one.net->forward(input);
      at::autocast::clear_cache();
      EXPECT_TRUE(torch::equal(found, one.net->forward(input))) << "step " << batch.step();
    }
  }
}

// Each step of a round changes weights.
TEST(LocalStepsLoop, AutocastAroundItIsThatInTheLoss) {
  const WithoutOneDnn without_onednn;
  const auto hash = [](bool around) {
    World world = World::over(connect_alone());
    const How how;
    Job job(world, options_of(how));
    One one(world, how.model);
    const auto half = [](bool here) {
      return here ? std::make_unique<Autocast>(torch::kCPU, torch::kBFloat16) : nullptr;
    };
    const auto outside = half(around);
    Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
      const auto inside = half(!around);
      return models::loss(*one.net, shard.batch);
    });
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = kSteps})) step(batch);
    return job.weights_sha256();
  };
  EXPECT_EQ(hash(true), hash(false));
  EXPECT_NE(hash(true), trained_alone({}));
}

template <typename Body>
std::string refusal(const Body& body) {
  try {
    World world = World::over(connect_alone());
    body(world);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::string refused(const StepOptions& options, const How& how = {}) {
  return refusal([&](World& world) {
    Job job(world, options_of(how));
    One one(world, how.model);
    const Step step(job, "train", {&one.optimizer}, one.loss(), options);
  });
}

TEST(LocalStepsOptions, WhatMakesNoSenseIsRefusedByName) {
  EXPECT_THAT(refused({}, {.local = LocalSteps::sgd(0)}), HasSubstr("a round of 0 steps"));
  EXPECT_THAT(refused({.before_update = [](std::int64_t) {}}), HasSubstr("before_update"));
  EXPECT_THAT(refused({.weight = [](const Shard&) { return 1.0; }}),
              HasSubstr("function of weights"));
  EXPECT_THAT(refused({.noise_scale_every = 4}), HasSubstr("noise scale"));
  GradScaler scaler;
  EXPECT_THAT(refused({.scaler = &scaler}), HasSubstr("loss scaler"));
}

TEST(LocalStepsOptions, ModelsThatCannotTrainByThemselvesAreRefusedByName) {
  EXPECT_THAT(refusal([](World& world) {
                Job job(world, options_of({}));
                One one(world, "mlp");
                one.optimizer.set_ema(0.9);
                const Step step(job, "train", {&one.optimizer}, one.loss());
              }),
              HasSubstr("keeps an average"));
  EXPECT_THAT(refusal([](World& world) {
                Job job(world, options_of({}));
                auto net = net_of("mlp");
                net->to(torch::kBFloat16);
                auto model = data_parallel(net, world);
                optim::SGD optimizer(model, {.lr = 0.1});
                const Step step(job, "train", {&optimizer}, [&](const Shard& shard) {
                  return models::loss(*net, shard.batch);
                });
              }),
              HasSubstr("wants float32 or float64"));
  EXPECT_THAT(refusal([](World& world) {
                Job job(world, options_of({}));
                One one(world, "mlp");
                const Step step(job, "train", {&one.optimizer}, one.loss());
                const Step other(job, "again", {&one.optimizer}, one.loss());
              }),
              HasSubstr("one Step"));
}

TEST(LocalStepsOptions, AWriteBetweenTwoRoundsIsRefused) {
  EXPECT_THAT(refusal([](World& world) {
                Job job(world, options_of({}));
                One one(world, "mlp");
                Step step(job, "train", {&one.optimizer}, one.loss());
                for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) {
                  step(batch);
                  torch::NoGradGuard no_grad;
                  one.net->parameters()[0].mul_(2);
                }
              }),
              HasSubstr("has written to"));
}

TEST(LocalStepsOptions, ACheckpointOfOtherRoundsIsRefused) {
  const Folder folder;
  How how{.checkpoint = folder / "run"};
  how.steps = 3;
  trained_alone(how);
  how.steps = kSteps;
  how.local = LocalSteps::sgd(2);
  EXPECT_THROW(trained_alone(how), Mismatch);
  how.local = {};
  EXPECT_THROW(trained_alone(how), Mismatch);
}

}  // namespace
}  // namespace lockstep::testing::loops
