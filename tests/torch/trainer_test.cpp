// Models and jobs at the edge of what a Trainer takes: their results, or refusals, are those of the job alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/torch/folder.h"
#include "tests/torch/nets.h"

namespace lockstep::testing::trainer {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 5;

// An embedding with sparse gradients, and a layer of which some batches have no need.
struct WordsImpl : torch::nn::Module {
  WordsImpl()
      : words(register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 33).sparse(true)))),
        usual(register_module("usual", torch::nn::Linear(33, 3))),
        rare(register_module("rare", torch::nn::Linear(33, 3))) {}

  // A target of 1 asks for the rare layer, too.
  torch::Tensor loss(const Batch& batch, bool always_rare) {
    const auto mean = words(batch.data).mean(1);
    auto sum = usual(mean).pow(2).mean();
    if (always_rare || batch.target.max().item<float>() > 0) sum = sum + rare(mean).pow(2).mean();
    return sum;
  }
  torch::nn::Embedding words;
  torch::nn::Linear usual, rare;
};
TORCH_MODULE(Words);

// Every word many times in each sample. One sample in eight asks for the rare layer.
DatasetPtr dataset() {
  const auto data = (samples(1, {32, 24}).abs() * 1000).to(torch::kInt64).remainder(7);
  const auto target = (torch::arange(32).remainder(8) == 0).to(torch::kFloat32);
  return tensor_dataset(data, target);
}

struct Job {
  bool always_rare = true;
  double momentum = 0.9;
  Algorithm algorithm = Algorithm::kAutomatic;
  TrainerOptions options{.steps = 3, .global_batch = 16, .shards = 4, .seed = kSeed};
  TrainerHooks hooks;
};

struct Training {
  Training(World& world, const Job& job)
      : net(seeded<Words>(kSeed)),
        model(data_parallel(net, world, {.algorithm = job.algorithm})),
        optimizer(std::make_shared<optim::SGD>(
            model, optim::SGDOptions{.lr = 0.1, .momentum = job.momentum})) {}

  std::string run(World& world, const Job& job) {
    TrainerParts parts{model, net.ptr(), optimizer, dataset()};
    parts.loss = [net = net, always = job.always_rare](const Batch& batch) mutable {
      return net->loss(batch, always);
    };
    return Trainer(world, parts, job.options, job.hooks).run().weights_sha256;
  }

  Words net;
  DataParallel<Words> model;
  std::shared_ptr<optim::Optimizer> optimizer;
};

std::string hash_of(World& world, const Job& job) {
  return Training(world, job).run(world, job);
}

TEST(TrainerCorners, SparseGradientsHaveTheSameBitsOnAnyNumberOfWorkers) {
  std::set<std::string> hashes;
  for (const int workers : {1, 2, 3, 4}) {
    for (const std::string engine : {"thread", "shm"}) {
      for (const bool watched : {true, false}) {
        in_world(workers, engine, [&](World& world) {
          Job job;
          job.options.check_divergence = watched;
          const std::string hash = hash_of(world, job);
          if (world.leader()) hashes.insert(hash);
        });
      }
    }
  }
  EXPECT_EQ(hashes.size(), 1U);
}

TEST(TrainerCorners, AShardThatMissesAGradientIsAnErrorOnAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 4}) {
    const auto outcomes =
        outcomes_in_world(workers, [](World& world) { hash_of(world, {.always_rare = false}); });
    bool named = false;
    for (const Outcome& outcome : outcomes)
      named = named || outcome.text.find("no gradient for rare.weight") != std::string::npos;
    EXPECT_TRUE(named) << workers << " workers: " << outcomes[0].text;
  }
}

TEST(TrainerCorners, AnOptimizerOfAnotherModelIsRefused) {
  in_world(1, [](World& world) {
    Training one(world, {});
    Training other(world, {});
    one.optimizer = other.optimizer;
    try {
      one.run(world, {});
      FAIL() << "it trained";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("optimizer was made for another model"));
    }
  });
}

TEST(TrainerCorners, ARateThatAHookHasSetIsThatOfTheResumedJobToo) {
  in_world(1, [](World& world) {
    const auto halving = [](Training& training) {
      TrainerHooks hooks;
      hooks.on_step = [&training](const StepRecord& record) {
        if (record.step == 1) training.optimizer->set_lr(0.05);
      };
      return hooks;
    };
    Job job;
    job.options.steps = 6;
    Training whole(world, job);
    job.hooks = halving(whole);
    const std::string expected = whole.run(world, job);

    const Folder folder;
    job.options.checkpoint_directory = folder.path();
    job.options.existing_checkpoint = ExistingCheckpoint::kResume;
    job.options.steps = 4;
    Training first(world, job);
    job.hooks = halving(first);
    first.run(world, job);
    job.options.steps = 6;
    Training second(world, job);
    job.hooks = {};
    EXPECT_EQ(second.run(world, job), expected);
    EXPECT_EQ(second.optimizer->lr(), 0.05);
  });
}

TEST(TrainerCorners, APlateauGoesOnFromItsCheckpoint) {
  const Folder folder;
  in_world(2, [&folder](World& world) {
    std::vector<double> rates;
    const auto run = [&](std::int64_t epochs, const std::string& into) {
      Job job;
      job.options.steps = 0;
      job.options.epochs = epochs;
      job.options.checkpoint_directory = into;
      job.options.existing_checkpoint = ExistingCheckpoint::kResume;
      Training training(world, job);
      TrainerParts parts{training.model, training.net.ptr(), training.optimizer, dataset(),
                         dataset()};
      parts.loss = [net = training.net](const Batch& batch) mutable {
        return net->loss(batch, true);
      };
      parts.score = [loss = parts.loss](const Batch& batch) -> Score {
        return {loss(batch).item<double>() * static_cast<double>(batch.samples), 0, batch.samples};
      };
      // Nothing is better than the first: after each two evaluations comes a reduction.
      parts.plateau = std::make_shared<ReduceLROnPlateau>(
          ReduceLROnPlateauOptions{.factor = 0.5, .patience = 1, .threshold = 1e9, .cooldown = 1});
      TrainerHooks hooks;
      hooks.on_step = [&](const StepRecord& record) { rates.push_back(record.lr); };
      return Trainer(world, parts, job.options, hooks).run().weights_sha256;
    };
    const std::string expected = run(8, "");
    const auto expected_rates = std::exchange(rates, {});
    EXPECT_EQ(std::set(expected_rates.begin(), expected_rates.end()).size(), 3U);
    for (const std::int64_t epochs : {2, 3, 6}) run(epochs, folder.path());
    EXPECT_EQ(run(8, folder.path()), expected);
    EXPECT_EQ(rates, expected_rates);
  });
  in_world(1, [](World& world) {
    Training training(world, {});
    TrainerParts parts{training.model, training.net.ptr(), training.optimizer, dataset()};
    parts.loss = [](const Batch&) { return torch::Tensor(); };
    parts.plateau = std::make_shared<ReduceLROnPlateau>();
    EXPECT_THROW(Trainer(world, parts, Job().options), BadInput);
  });
}

TEST(TrainerCorners, ACheckpointIsOfItsOptimizersOptionsAndItsOrderOfAddition) {
  const Folder folder;
  const auto trained = [&](int workers, Job job) {
    job.options.checkpoint_directory = folder.path();
    job.options.existing_checkpoint = ExistingCheckpoint::kResume;
    ++job.options.steps;
    return outcomes_in_world(workers, [&](World& world) { hash_of(world, job); })[0];
  };
  Job job;
  job.options.steps = 1;
  EXPECT_FALSE(trained(1, job).kind);
  job.options.steps = 2;
  EXPECT_FALSE(trained(2, job).kind) << "another number of workers is no other job";
  job.momentum = 0.8;
  EXPECT_THAT(trained(1, job).text, HasSubstr("optimizer_options = momentum 0.9"));
  job.momentum = 0.9;
  job.algorithm = Algorithm::kRing;
  EXPECT_THAT(trained(1, job).text, HasSubstr("algorithm = bit-stable"));
}

TEST(TrainerCorners, WhatAJobDoesAboutACheckpointIsTheSameOnEveryWorker) {
  const Folder folder;
  Job job;
  job.options.checkpoint_directory = folder.path();
  const auto ends = [&](ExistingCheckpoint existing) {
    job.options.existing_checkpoint = existing;
    return outcomes_in_world(3, [&](World& world) { hash_of(world, job); });
  };
  for (const Outcome& outcome : ends(ExistingCheckpoint::kRefuse)) EXPECT_FALSE(outcome.kind);
  for (const Outcome& outcome : ends(ExistingCheckpoint::kRefuse)) {
    EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    EXPECT_THAT(outcome.text, HasSubstr("holds the checkpoint of a job already"));
  }
  for (const Outcome& outcome : ends(ExistingCheckpoint::kReplace)) EXPECT_FALSE(outcome.kind);
  const auto differing = outcomes_in_world(2, [&](World& world) {
    Job own = job;
    if (world.leader()) own.options.existing_checkpoint = ExistingCheckpoint::kResume;
    hash_of(world, own);
  });
  for (const Outcome& outcome : differing) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text, HasSubstr("existing_checkpoint is replace on rank 1"));
  }
}

TEST(TrainerCorners, ADirectoryIsOneTrainersUntilItHasRun) {
  in_world(1, [](World& world) {
    const Folder folder;
    Job job;
    job.options.checkpoint_directory = folder.path();
    job.options.existing_checkpoint = ExistingCheckpoint::kResume;
    Training one(world, job);
    const auto trainer = [&](Training& training) {
      TrainerParts parts{training.model, training.net.ptr(), training.optimizer, dataset()};
      parts.loss = [net = training.net](const Batch& batch) mutable {
        return net->loss(batch, true);
      };
      return std::make_unique<Trainer>(world, parts, job.options);
    };
    const auto first = trainer(one);
    Training other(world, job);
    EXPECT_THROW(trainer(other), BadInput);
    first->run();
    EXPECT_EQ(trainer(other)->run().first_step, 3);
  });
}

// LibTorch's text goes on with a backtrace of C++.
TEST(TrainerCorners, WhatLibTorchRefusesInALossSaysWhere) {
  in_world(1, [](World& world) {
    Training training(world, {});
    TrainerParts parts{training.model, training.net.ptr(), training.optimizer, dataset()};
    auto loss = [net = training.net](const Batch& batch) mutable { return net->loss(batch, true); };
    const auto refusal = [&](const TrainerParts& wrong) -> std::string {
      try {
        Trainer(world, wrong, Job().options).run();
      } catch (const BadInput& error) {
        return error.what();
      }
      return "none";
    };
    int calls = 0;
    parts.loss = [&](const Batch& batch) {
      return ++calls == 6
                 ? torch::nll_loss(torch::zeros({4, 3}), torch::full({4}, 9, torch::kInt64))
                 : loss(batch);
    };
    EXPECT_THAT(refusal(parts),
                ::testing::AllOf(HasSubstr("the loss fails on step 1, shard 1: "),
                                 HasSubstr("9 is out of bounds"), ::testing::Not(HasSubstr("\n"))));
    parts.loss = [&](const Batch& batch) { return loss(batch).detach(); };
    EXPECT_THAT(refusal(parts), HasSubstr("the loss at step 0, shard 0 depends on no parameter"));
    parts.loss = loss;
    parts.test = dataset();
    parts.score = [](const Batch& batch) -> Score {
      return {batch.data.to(torch::kFloat32).mm(torch::ones({3, 2})).sum().item<double>(), 0, 1};
    };
    EXPECT_THAT(refusal(parts), HasSubstr("the score fails on the test data, shard 0: "));
  });
}

TEST(Trainer, WhatIsDrawnAfterARunDoesNotDependOnTheWorkers) {
  std::set<float> drawn;
  for (const int workers : {1, 2, 3}) {
    in_world(workers, [&](World& world) {
      Job job;
      Training(world, job).run(world, job);
      world.comm().barrier().wait();
      if (world.leader()) drawn.insert(torch::rand({1}).item<float>());
    });
  }
  EXPECT_EQ(drawn.size(), 1U);
}

TEST(Trainer, SaysThatACheckpointIsBeyondTheLastStep) {
  const Folder folder;
  in_world(1, [&](World& world) {
    Job job;
    job.options.checkpoint_directory = folder.path();
    Training(world, job).run(world, job);
    job.options.existing_checkpoint = ExistingCheckpoint::kResume;
    job.options.steps = 2;
    ::testing::internal::CaptureStderr();
    Training(world, job).run(world, job);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("is of step 3, and this job ends after 2: nothing is left to do"));
  });
}

}  // namespace
}  // namespace lockstep::testing::trainer
