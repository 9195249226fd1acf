// Programs with a loop of their own: Job and Step give one hash for a job, whatever the number of workers and the engine,
// and the Trainer's for the Trainer's job. Workers are threads of this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/step.h>
#include <lockstep/trainer.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch/folder.h"
#include "tests/torch/nets.h"
#include "torch/models/models.h"

namespace lockstep::testing::steps {
namespace {

// Not those of other tests.
using lockstep::Job;
using lockstep::Outcome;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kClasses = 4;
constexpr std::int64_t kSamples =
    35;  // batches of 16, 16 and 3: the last leaves five of 8 shards empty
constexpr std::int64_t kSteps = 7;  // two epochs, and one more

JobOptions job_options(const std::string& checkpoint = "") {
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

DataShape shape_of(const std::string& model) {
  if (model == "gpt") return {{6}, 12, true};
  if (model == "cnn") return {{1, 8, 8}, kClasses, false};
  return {{10}, kClasses, false};
}

DatasetPtr data_of(const std::string& model) {
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

std::shared_ptr<models::Net> net_of(const std::string& model) {
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

std::string trained_by_loop(World& world, const std::string& name) {
  Job job(world, job_options());
  One one(world, name);
  Step step(job, "train", {&one.optimizer}, one.loss());
  for (const GlobalBatch& batch : job.batches(data_of(name), {.steps = kSteps})) step(batch);
  EXPECT_EQ(job.step(), kSteps);
  return job.weights_sha256();
}

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
    return generator(torch::randn({shard.batch.samples, 3}));
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

std::string gan_alone(double penalty = 0) {
  World alone = World::over(connect_alone());
  return Gan(alone, job_options(), penalty).run(kSteps);
}

TEST(OwnLoop, AGanHasOneHashOnAnyNumberOfWorkers) {
  const std::string expected = gan_alone();
  expect_everywhere(expected, [](World& world) { return Gan(world).run(kSteps); });
  EXPECT_NE(gan_alone(1), expected);
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

TEST(OwnLoop, MayEndAndBeginAgainAndBeLeftEarly) {
  World alone = World::over(connect_alone());
  const std::string expected = trained_by_loop(alone, "cnn");
  in_world(2, "shm", [&](World& world) {
    Job job(world, job_options());
    One one(world, "cnn");
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.epochs = 1})) step(batch);
    EXPECT_EQ(job.step(), job.steps_per_epoch());
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = kSteps})) {
      step(batch);
      if (batch.step() == 4) break;
    }
    EXPECT_EQ(job.step(), 5);
    try {
      for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = kSteps})) {
        EXPECT_EQ(batch.step(), 5);
        throw std::runtime_error("of the program's own");
      }
    } catch (const std::runtime_error&) {
    }
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = kSteps})) step(batch);
    EXPECT_EQ(job.weights_sha256(), expected);
    EXPECT_FALSE(one.net->parameters()[0].grad().defined());
    world.comm().barrier().wait();
  });
}

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

TEST(OwnLoop, EvaluationChangesNothingAndIsTheSameOnAnyNumberOfWorkers) {
  World alone = World::over(connect_alone());
  const std::string expected = trained_by_loop(alone, "cnn");
  const auto losses = [&](World& world) {
    Job job(world, job_options());
    One one(world, "cnn");
    Step step(job, "train", {&one.optimizer}, one.loss());
    std::string said;
    const auto score = [&](const Batch& batch) -> Score {
      EXPECT_FALSE(one.net->is_training());
      const auto logits = models::logits(*one.net, batch);
      EXPECT_FALSE(logits.requires_grad());
      return {torch::nn::functional::cross_entropy(logits, batch.target).item<double>() *
                  static_cast<double>(batch.samples),
              (logits.argmax(1) == batch.target).sum().item<std::int64_t>(), batch.samples};
    };
    one.net->children()[0]->eval();  // stays as the program has it
    one.net->children()[0]->train();
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = kSteps})) {
      said += std::to_string(job.evaluate(data_of("cnn"), score).loss) + " ";
      EXPECT_TRUE(one.net->is_training());
      step(batch);
    }
    EXPECT_EQ(job.weights_sha256(), expected);
    return said;
  };
  EXPECT_EQ(same_on_all(3, "shm", losses), same_on_all(1, "thread", losses));
}

TEST(OwnLoop, AnOutcomeSaysWhatTheLossReported) {
  const auto said = [](World& world) {
    Job job(world, job_options());
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
      const auto& [data, target, samples] = shard.batch;
      EXPECT_EQ(shard.count, 8);
      EXPECT_EQ(shard.phase, 0);
      shard.report("target", target.sum());
      shard.report("shard", shard.index, 1);
      if (shard.index == 0) shard.report("first", torch::ones({}), torch::full({}, 2));
      return models::loss(*one.net, shard.batch);
    });
    std::vector<Outcome> kept;
    std::string text;
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 3})) {
      kept.push_back(step(batch));
      if (batch.step() != 1) continue;
      EXPECT_TRUE(std::isfinite(kept.back().loss()));
      double sum = 0;
      for (int shard = 0; shard < 8; ++shard) sum += batch.shard(shard).target.sum().item<double>();
      EXPECT_EQ(kept.back().metric("target"), sum / static_cast<double>(batch.samples()));
      EXPECT_EQ(kept.back().metric("shard"), 3.5);
      EXPECT_EQ(kept.back().metric("first"), 0.5);
      EXPECT_THROW(kept.back().metric("other"), BadInput);
    }
    for (const Outcome& outcome : kept)
      text += std::to_string(outcome.loss()) + " " + std::to_string(outcome.metric("target")) + " ";
    EXPECT_EQ(kept[2].step, 2);
    EXPECT_EQ(kept[2].metric("shard"), 1) << "three samples: shards 0, 1 and 2";
    EXPECT_FALSE(kept[2].skipped);
    return text;
  };
  const std::string expected = same_on_all(1, "thread", said);
  EXPECT_EQ(same_on_all(3, "thread", said), expected);
  EXPECT_EQ(same_on_all(8, "shm", said), expected);
}

TEST(OwnLoop, AMetricThatComesLaterIsRefusedOnAllWorkers) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    Job job(world, job_options());
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
      if (shard.step == 1 && shard.index == 6) shard.report("late", 1, 1);
      return models::loss(*one.net, shard.batch);
    });
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 3})) step(batch);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    EXPECT_THAT(outcome.text, HasSubstr("reported a metric at step 1"));
  }
}

// A second call of a Step reads its batch again, and draws other numbers.
TEST(OwnLoop, AStepMayBeCalledTwiceOnABatchOrNotAtAll) {
  const auto hash = [](World& world) {
    Job job(world, job_options());
    One one(world, "cnn");
    std::vector<int> phases;
    Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
      phases.push_back(shard.phase);
      return models::loss(*one.net, shard.batch);
    });
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = 4})) {
      if (batch.step() == 1) continue;
      EXPECT_EQ(step(batch).phase, 0);
      EXPECT_EQ(step(batch).phase, 1);
    }
    EXPECT_EQ(std::set<int>(phases.begin(), phases.end()), (std::set<int>{0, 1}));
    return job.weights_sha256();
  };
  const std::string expected = same_on_all(1, "thread", hash);
  EXPECT_EQ(same_on_all(3, "thread", hash), expected);
  EXPECT_EQ(same_on_all(2, "shm", hash), expected);
}

TEST(OwnLoop, AStopOfOneWorkerEndsAllAtTheSameBatchWithACheckpoint) {
  const Folder folder;
  std::mutex mutex;
  std::set<std::int64_t> ends;
  in_world(3, [&](World& world) {
    Gan gan(world, job_options(folder.path()));
    for (const GlobalBatch& batch : gan.job.batches(data_of("mlp"), {.steps = 100})) {
      gan.d_step(batch);
      gan.g_step(batch);
      if (batch.step() == 2 && world.rank() == 1) gan.job.request_stop();
    }
    EXPECT_TRUE(gan.job.stopped());
    const std::lock_guard lock(mutex);
    ends.insert(gan.job.step());
  });
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_LE(*ends.begin(), 5);
  World alone = World::over(connect_alone());
  Gan again(alone, job_options(folder.path()));
  EXPECT_EQ(again.run(kSteps), gan_alone());
}

TEST(OwnLoop, ALossThatThrowsOnOneWorkerEndsAllSoon) {
  for (const std::string engine : {"thread", "shm"}) {
    const auto outcomes = outcomes_in_world(
        3,
        [](World& world) {
          Job job(world, job_options());
          One one(world, "mlp");
          Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
            if (shard.step == 1 && shard.index == 4) throw BadInput("a bad sample");
            return models::loss(*one.net, shard.batch);
          });
          for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 3})) step(batch);
        },
        engine);
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_TRUE(outcomes[rank].kind) << "rank " << rank << " has not failed";
      EXPECT_LT(outcomes[rank].took, std::chrono::seconds(10));
    }
    EXPECT_EQ(outcomes[1].text, "a bad sample");
  }
}

TEST(OwnLoop, AJobWhoseStepHasFailedIsOfNoFurtherUse) {
  World alone = World::over(connect_alone());
  Job job(alone, job_options());
  One one(alone, "mlp");
  bool bad = true;
  Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
    if (std::exchange(bad, false)) throw BadInput("a bad sample");
    return models::loss(*one.net, shard.batch);
  });
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 2})) {
    EXPECT_THROW(step(batch), BadInput);
    EXPECT_THROW(step(batch), BadInput) << "the next one, too";
    break;
  }
  EXPECT_THROW(job.batches(data_of("mlp"), {.steps = 2}), BadInput);
}

// One of two copies of a model gets another gradient in the last phase of a step: all phases are run again from the
// checkpoint. The model is so large that the sample of gradients that workers compare at every update misses it.
TEST(OwnLoop, AReplayOfAllPhasesNamesTheWorkerThatWasWrong) {
  const Folder folder;
  const auto outcomes = outcomes_in_world(2, [&](World& world) {
    JobOptions options = job_options(folder.path());
    options.checkpoint_every_steps = 2;
    Job job(world, options);
    auto net = data_parallel(seeded<TwoLayers>(kSeed, 10, 900, 10), world, {.name = "net"});
    auto other = data_parallel(seeded<Noisy>(kSeed, 10, 10), world, {.name = "other"});
    optim::AdamW optimizer(net, {.lr = 1e-3});
    optim::SGD of_other(other, {.lr = 0.1});
    const auto loss = [&](const Shard& shard) {
      return (net(other(shard.batch.data)) - shard.batch.data).pow(2).mean();
    };
    bool done = false;
    Step first(job, "first", {&optimizer}, loss);
    Step second(job, "second", {&of_other}, loss);
    Step last(job, "last", {&optimizer}, loss, {.before_update = [&](std::int64_t step) {
                if (world.rank() != 1 || step != 3 || std::exchange(done, true)) return;
                net->first->bias.mutable_grad().data_ptr<float>()[77] += 1e-3F;
              }});
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) {
      first(batch);
      second(batch);
      optimizer.set_lr(1e-3 / static_cast<double>(batch.step() + 1));
      last(batch);
    }
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
    EXPECT_EQ(outcome.ranks, std::vector<int>{1}) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("step 3: workers have applied different gradients"));
    EXPECT_THAT(outcome.text, HasSubstr("replay of the step gives the same on all of them"));
  }
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "none";
}

TEST(OwnLoop, RefusesStepsThatDoNotFit) {
  World alone = World::over(connect_alone());
  Job job(alone, job_options());
  const BatchesOptions one_step{.steps = 1};
  EXPECT_THAT(refusal([&] { job.batches(data_of("mlp"), one_step); }), HasSubstr("no Step"));
  One one(alone, "mlp");
  const auto make = [&](const std::string& name, std::vector<optim::Optimizer*> optimizers) {
    return refusal([&] { Step(job, name, optimizers, one.loss()); });
  };
  EXPECT_THAT(make("train", {}), HasSubstr("at least one optimizer"));
  EXPECT_THAT(make("train", {nullptr}), HasSubstr("no optimizer"));
  EXPECT_THAT(make("train", {&one.optimizer, &one.optimizer}), HasSubstr("one twice"));
  Step step(job, "train", {&one.optimizer}, one.loss());
  EXPECT_THAT(make("train", {&one.optimizer}), HasSubstr("two Steps of the job are called train"));
  optim::SGD second(one.model, {.lr = 0.1});
  EXPECT_THAT(make("other", {&second}), HasSubstr("two optimizers of the job train one model"));
  EXPECT_THAT(refusal([&] { job.batches(data_of("mlp"), {}); }),
              HasSubstr("either steps or epochs"));
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 2})) {
    step(batch);
    EXPECT_THAT(make("late", {&one.optimizer}), HasSubstr("comes after batches()"));
    EXPECT_THAT(refusal([&] { job.batches(data_of("mlp"), one_step); }), HasSubstr("another loop"));
    const GlobalBatch copy = batch;
    EXPECT_THAT(refusal([&] { step(copy); }), HasSubstr("the batch that its job's loop is at"));
    EXPECT_THAT(refusal([&] { job.save(); }), HasSubstr("no directory"));
  }
}

TEST(OwnLoop, RefusesModelsOfOneName) {
  World alone = World::over(connect_alone());
  Job job(alone, job_options());
  One one(alone, "mlp");
  One other(alone, "mlp");
  Step step(job, "one", {&one.optimizer}, one.loss());
  Step another(job, "other", {&other.optimizer}, other.loss());
  EXPECT_THAT(refusal([&] { job.batches(data_of("mlp"), {.steps = 1}); }),
              HasSubstr("DataParallelOptions::name"));
}

}  // namespace
}  // namespace lockstep::testing::steps
