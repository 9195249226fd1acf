// Job and Step give one hash for a job, whatever the number of workers and the engine, and the Trainer's for the Trainer's job.
#include <gtest/gtest.h>
#include <lockstep/step.h>
#include <lockstep/trainer.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/torch/folder.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::loops {
namespace {

std::string trained_by_trainer(World& world, const std::string& name) {
  One one(world, name);
  TrainerParts parts{one.model, one.net,
                     std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &one.optimizer),
                     data_of(name)};
  parts.loss = [net = one.net](const Batch& batch) { return models::loss(*net, batch); };
  const TrainerOptions options{.steps = kSteps, .global_batch = 16, .shards = 8, .seed = kSeed};
  return Trainer(world, parts, options).run().weights_sha256;
}

class OneHash : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, OneHash, ::testing::Values("mlp", "cnn", "gpt"),
                         [](const auto& model) { return model.param; });

TEST_P(OneHash, OfALoopIsThatOfTheTrainerOnAnyNumberOfWorkers) {
  const std::string& name = GetParam();
  World alone = World::over(connect_alone());
  expect_everywhere(trained_by_trainer(alone, name),
                    [&](World& world) { return trained_by_loop(world, name); });
}

TEST(OwnLoop, AGanHasOneHashOnAnyNumberOfWorkers) {
  const std::string expected = gan_alone();
  expect_everywhere(expected, [](World& world) { return Gan(world).run(kSteps); });
  EXPECT_NE(gan_alone(1), expected);
}

// The divergence check must not take loaded weights for flipped bits.
TEST(OwnLoop, MayLoadWeightsBetweenTwoBatches) {
  const Folder folder;
  const std::string file = folder.path() + "/weights.safetensors";
  const auto hash = [&](World& world) {
    One one(world, "mlp");
    Job job(world, job_options());
    Step step(job, "train", {&one.optimizer},
              [&](const Shard& shard) { return models::loss(*one.net, shard.batch); });
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) {
      step(batch);
      if (batch.step() == 1 && world.leader()) save(one.model, file);
      if (batch.step() == 3) load(one.model, file);
    }
    return job.weights_sha256();
  };
  const std::string expected = same_on_all(1, "thread", hash);
  for (const std::string engine : {"thread", "shm", kTcpHosts})
    EXPECT_EQ(same_on_all(3, engine, hash), expected) << engine;
}

TEST(OwnLoop, BuffersMayBeTheMeanOverShards) {
  const auto hash = [](World& world) {
    JobOptions options = job_options();
    options.buffers = ShardBufferRule::kMean;
    return Gan(world, options).run(3);
  };
  const std::string expected = same_on_all(1, "thread", hash);
  EXPECT_EQ(same_on_all(3, "shm", hash), expected);
  EXPECT_EQ(same_on_all(4, "thread", hash), expected);
  EXPECT_EQ(same_on_all(4, kTcpHosts, hash), expected);
}

TEST(OwnLoop, ALossMayHoldAGradientPenalty) {
  const std::string expected = gan_alone(0.1);
  for (const std::string engine : {"thread", "shm"}) {
    EXPECT_EQ(same_on_all(3, engine,
                          [](World& world) { return Gan(world, job_options(), 0.1).run(kSteps); }),
              expected);
  }
}

// The one that reads what the other writes, as one loss.
TEST(OwnLoop, OneStepMayTrainSeveralModels) {
  const auto hash = [](World& world) {
    Job job(world, job_options());
    auto coder = data_parallel(seeded<Noisy>(kSeed, 10, 3), world, {.name = "coder"});
    auto decoder = data_parallel(seeded<Noisy>(kSeed + 1, 3, 10), world, {.name = "decoder"});
    optim::AdamW of_coder(coder, {.lr = 1e-2});
    optim::SGD of_decoder(decoder, {.lr = 0.1});
    Step step(job, "both", {&of_coder, &of_decoder}, [&](const Shard& shard) {
      return (decoder(coder(shard.batch.data)) - shard.batch.data).pow(2).mean();
    });
    double first = 0;
    double last = 0;
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) {
      last = step(batch).loss();
      if (batch.step() == 0) first = last;
    }
    EXPECT_LT(last, first);
    return job.weights_sha256();
  };
  expect_everywhere(same_on_all(1, "thread", hash), hash);
}

// Its drop-in hooks would average its gradients, once for each shard that a worker hosts.
TEST(OwnLoop, AModelThatNobodyNamedGetsNoGradients) {
  const auto hash = [](World& world) {
    Job job(world, job_options());
    auto unnamed = data_parallel(seeded<TwoLayers>(kSeed, 10), world, {.name = "unnamed"});
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
      return one.loss()(shard) + unnamed(shard.batch.data).pow(2).mean();
    });
    unnamed.zero_grad();
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) step(batch);
    EXPECT_FALSE(unnamed->first->weight.grad().defined());
    return job.weights_sha256();
  };
  const std::string expected = same_on_all(1, "thread", hash);
  EXPECT_EQ(same_on_all(3, "shm", hash), expected);
}

// It has buffers that change, and no optimizer.
TEST(OwnLoop, ALossMayReadAModelThatNobodyTrains) {
  const auto hash = [](World& world) {
    Job job(world, job_options());
    auto teacher = data_parallel(seeded<Noisy>(kSeed, 10, 10), world, {.name = "teacher"});
    auto pupil = data_parallel(seeded<Noisy>(kSeed + 1, 10, 10), world, {.name = "pupil"});
    optim::AdamW optimizer(pupil, {.lr = 1e-2});
    Step step(job, "distil", {&optimizer},
              [&](const Shard& shard) {
                return (teacher(shard.batch.data) - pupil(shard.batch.data)).pow(2).mean();
              },
              {.models = {&teacher}, .learning_rate = [](std::int64_t at) {
                 return 1e-2 / static_cast<double>(at + 1);
               }});
    const auto before = teacher->first->weight.detach().clone();
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) step(batch);
    EXPECT_TRUE(torch::equal(teacher->first->weight, before));
    EXPECT_FALSE(teacher->first->weight.grad().defined() &&
                 teacher->first->weight.grad().abs().max().item<float>() > 0);
    EXPECT_GT(teacher->mean.abs().max().item<float>(), 0);
    EXPECT_TRUE(teacher.identical());
    return job.weights_sha256();
  };
  const std::string expected = same_on_all(1, "thread", hash);
  EXPECT_EQ(same_on_all(3, "thread", hash), expected);
  EXPECT_EQ(same_on_all(4, "shm", hash), expected);
}

TEST(OwnLoop, GoesOnFromItsCheckpointOnAnotherNumberOfWorkers) {
  const std::string gan = gan_alone();
  World alone = World::over(connect_alone());
  const std::string mlp = trained_by_loop(alone, "mlp");
  for (const std::int64_t until : {2, 3, 4}) {  // in an epoch, and at its end
    const Folder folders[2];
    int workers = 1;
    for (const std::int64_t end : {until, kSteps}) {
      workers = workers * 2 + 1;
      const std::string hash = same_on_all(workers, "thread", [&](World& world) {
        return Gan(world, job_options(folders[0].path())).run(end);
      });
      EXPECT_EQ(hash == gan, end == kSteps);
      const std::string other = same_on_all(workers - 1, "shm", [&](World& world) {
        Job job(world, {.global_batch = 16, .seed = kSeed, .checkpoint = folders[1].path()});
        One one(world, "mlp");
        Step step(job, "train", {&one.optimizer}, one.loss());
        std::int64_t first = -1;
        for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = end})) {
          if (first < 0) first = batch.step();
          step(batch);
        }
        EXPECT_EQ(first, end == kSteps ? until : 0);
        EXPECT_EQ(job.shards(), 8);
        return job.weights_sha256();
      });
      EXPECT_EQ(other == mlp, end == kSteps);
    }
  }
}

// Files of a job with one model are those of the Trainer.
TEST(OwnLoop, GoesOnFromTheCheckpointOfATrainer) {
  const Folder folder;
  World alone = World::over(connect_alone());
  {
    One one(alone, "mlp");
    TrainerParts parts{one.model, one.net,
                       std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &one.optimizer),
                       data_of("mlp")};
    parts.loss = [net = one.net](const Batch& batch) { return models::loss(*net, batch); };
    TrainerOptions options{.steps = 3, .global_batch = 16, .shards = 8, .seed = kSeed};
    options.checkpoint_directory = folder.path();
    Trainer(alone, parts, options).run();
  }
  Job job(alone, job_options(folder.path()));
  One one(alone, "mlp");
  Step step(job, "train", {&one.optimizer}, one.loss());
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) step(batch);
  EXPECT_EQ(job.weights_sha256(), trained_by_loop(alone, "mlp"));
}

}  // namespace
}  // namespace lockstep::testing::loops
