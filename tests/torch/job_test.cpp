// What a program may do with a Job and its Steps beside training, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/step.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch/folder.h"
#include "tests/torch/loops.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing::loops {
namespace {

using ::testing::HasSubstr;

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

// So many metrics that they are still on their way when the loop is left.
TEST(OwnLoop, WhenItIsLeftEarlyTheWorldIsOfFurtherUse) {
  in_world(2, "shm", [&](World& world) {
    for (int times = 0; times < 10; ++times) {
      {
        Job job(world, job_options());
        One one(world, "mlp");
        Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
          for (int i = 0; i < 100; ++i) shard.report("metric" + std::to_string(i), i, 1);
          return models::loss(*one.net, shard.batch);
        });
        for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 2})) {
          step(batch);
          break;
        }
      }
      world.comm().barrier().wait();
    }
  });
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
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = kSteps})) {
      said += std::to_string(job.evaluate(data_of("cnn"), score).loss) + " ";
      EXPECT_TRUE(one.net->is_training());
      step(batch);
    }
    EXPECT_EQ(job.weights_sha256(), expected);
    one.net->children()[0]->eval();
    job.evaluate(data_of("cnn"), score);
    EXPECT_FALSE(one.net->children()[0]->is_training()) << "as the program has it";
    EXPECT_TRUE(one.net->children()[1]->is_training());
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

TEST(OwnLoop, AStepThatOneWorkerLeavesOutIsAMismatch) {
  const auto leave_out = [](World& world) {
    Job job(world, job_options());
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 4})) {
      if (batch.step() == 1 && world.leader()) continue;
      step(batch);
    }
  };
  for (const std::string& engine : cpu_engines()) {
    for (const auto& outcome : outcomes_in_world(2, leave_out, engine)) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << engine;
      EXPECT_THAT(outcome.text, HasSubstr("Step train 1 phase 0"));
      EXPECT_THAT(outcome.text, HasSubstr("Step train 2 phase 0"));
    }
  }
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
    EXPECT_THAT(outcome.text, HasSubstr("rerun of the step gives the same on all of them"));
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

// A checkpoint of a batch that is half done would go on with the next one.
TEST(OwnLoop, SavesNothingInTheMiddleOfABatch) {
  World alone = World::over(connect_alone());
  const auto expect_refused = [](const std::function<void()>& call, const std::string& text) {
    try {
      call();
      ADD_FAILURE() << "passed: " << text;
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  const Folder between;
  Gan saves(alone, job_options(between.path()));
  for (const GlobalBatch& batch : saves.job.batches(data_of("mlp"), {.steps = 1})) {
    saves.d_step(batch);
    saves.job.save();
    expect_refused([&] { saves.g_step(batch); }, "save() came between two Steps of one batch");
    break;
  }
  const Folder thrown;
  Gan throws(alone, job_options(thrown.path()));
  try {
    for (const GlobalBatch& batch : throws.job.batches(data_of("mlp"), {.steps = 1})) {
      throws.d_step(batch);
      throw std::runtime_error("of the program's own");
    }
  } catch (const std::runtime_error&) {
  }
  expect_refused([&] { throws.job.save(); }, "left by an exception between two Steps");
  const Folder failed;
  Job job(alone, job_options(failed.path()));
  One one(alone, "mlp");
  Step step(job, "train", {&one.optimizer},
            [](const Shard&) -> torch::Tensor { throw std::runtime_error("of the loss"); });
  EXPECT_ANY_THROW({
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 1})) step(batch);
  });
  expect_refused([&] { job.save(); }, "a step of the job has failed");
}

TEST(OwnLoop, ALossThatIsNotFiniteIsThatOfAStepByName) {
  for (const std::int64_t when : {0, 2}) {
    World alone = World::over(connect_alone());
    Job job(alone, job_options());
    One one(alone, "mlp");
    Step sound(job, "sound", {&one.optimizer}, one.loss());
    Step broken(job, "broken", {&one.optimizer}, [&](const Shard& shard) {
      return one.loss()(shard) / (shard.step == when ? 0.0 : 1.0);
    });
    const std::string said = refusal([&] {
      for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) {
        sound(batch);
        broken(batch);
      }
    });
    EXPECT_THAT(said, HasSubstr("the loss of Step broken is inf at step " + std::to_string(when)));
    EXPECT_THAT(said, HasSubstr(when == 0 ? "it is the first step" : "training has diverged"));
  }
}

TEST(OwnLoop, AnEvaluationThatWritesToBuffersLeavesThemAsTheyWere) {
  World alone = World::over(connect_alone());
  Job job(alone, job_options());
  auto net = data_parallel(seeded<Noisy>(kSeed, 10, kClasses), alone);
  optim::SGD optimizer(net, {.lr = 0.1});
  Step step(job, "train", {&optimizer},
            [&](const Shard& shard) { return net(shard.batch.data).pow(2).mean(); });
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 2})) step(batch);
  const std::string before = job.weights_sha256();
  job.evaluate(data_of("mlp"), [&](const Batch& batch) {
    net->mean.add_(1);
    return Score{net(batch.data).sum().item<double>(), 0, batch.samples};
  });
  EXPECT_EQ(job.weights_sha256(), before);
}

TEST(OwnLoop, RefusesNumbersThatNoJobHas) {
  World alone = World::over(connect_alone());
  const auto with = [](const std::function<void(JobOptions&)>& change) {
    JobOptions options = job_options();
    change(options);
    return options;
  };
  EXPECT_THROW(Job(alone, with([](JobOptions& o) { o.shards = 1 << 30; })), BadInput);
  EXPECT_THROW(Job(alone, with([](JobOptions& o) { o.shards = -1; })), BadInput);
  EXPECT_THROW(Job(alone, with([](JobOptions& o) { o.checkpoint_every_steps = -1; })), BadInput);
  Job job(alone, job_options());
  One one(alone, "mlp");
  EXPECT_THROW(Step(job, "null", {&one.optimizer}, one.loss(), {.models = {nullptr}}), BadInput);
  Step step(job, "train", {&one.optimizer}, one.loss());
  const auto data = data_of("mlp");
  EXPECT_THROW(job.batches(data, {.steps = INT64_MAX}), BadInput);
  EXPECT_THROW(job.batches(data, {.steps = 1, .loader_threads = -1}), BadInput);
  EXPECT_THROW(GlobalBatch{}.shard(0), BadInput);
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

TEST(OwnLoop, ABatchThatIsKeptCannotBeReadAfterItsLoop) {
  World alone = World::over(connect_alone());
  Job job(alone, job_options());
  One one(alone, "mlp");
  Step step(job, "train", {&one.optimizer}, one.loss());
  std::vector<GlobalBatch> kept;
  {
    Batches batches = job.batches(data_of("mlp"), {.steps = 2});
    for (const GlobalBatch& batch : batches) {
      step(batch);
      kept.push_back(batch);
      EXPECT_EQ(kept.front().shard(1).samples, 2);
    }
    EXPECT_THAT(refusal([&] { kept.front().shard(1); }), HasSubstr("only in the loop"));
  }
  EXPECT_THAT(refusal([&] { kept.front().shard(1); }), HasSubstr("only in the loop"));
}

TEST(OwnLoop, RefusesALossThatBackwardCannotBeginWith) {
  using MakeLoss = std::function<torch::Tensor(One&, const Shard&)>;
  const auto refused = [](const MakeLoss& loss) {
    World alone = World::over(connect_alone());
    Job job(alone, job_options());
    One one(alone, "mlp");
    Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) { return loss(one, shard); });
    return refusal([&] {
      for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 1})) step(batch);
    });
  };
  EXPECT_THAT(refused([](One&, const Shard&) { return torch::Tensor(); }), HasSubstr("undefined"));
  EXPECT_THAT(refused([](One& one, const Shard& shard) { return one.loss()(shard).repeat(3); }),
              HasSubstr("is float32 [3]: return one number"));
  EXPECT_THAT(refused([](One&, const Shard&) { return torch::ones({}); }),
              HasSubstr("no parameter that can be trained"));
}

TEST(OwnLoop, RefusesAnUpdateOfTheProgramsOwnOnAnyNumberOfWorkers) {
  for (const int workers : {1, 2}) {
    in_world(workers, "shm", [](World& world) {
      Job job(world, job_options());
      One one(world, "mlp");
      Step step(job, "train", {&one.optimizer}, one.loss());
      for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 1})) {
        step(batch);
        EXPECT_THAT(refusal([&] { one.optimizer.step(); }), HasSubstr("leave the call out"));
      }
      world.comm().barrier().wait();
    });
  }
}

// Without the divergence check, too: each worker of a host would write to the one copy again.
TEST(OwnLoop, RefusesParametersThatTheProgramWroteTo) {
  for (const bool checked : {true, false}) {
    in_world(2, "shm", [&](World& world) {
      JobOptions options = job_options();
      options.check_divergence = checked;
      Job job(world, options);
      One one(world, "mlp");
      Step step(job, "train", {&one.optimizer}, one.loss());
      const std::string said = refusal([&] {
        for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 3})) {
          step(batch);
          one.net->parameters()[0].data().mul_(0.5);
          world.comm().barrier().wait();
        }
      });
      EXPECT_THAT(said, HasSubstr("something other than lockstep::optim has written to"));
      world.comm().barrier().wait();
    });
  }
}

TEST(OwnLoop, TakesWhatTheProgramWroteBeforeIt) {
  std::vector<std::string> hashes;
  for (const int workers : {1, 2}) {
    in_world(workers, "shm", [&](World& world) {
      Job job(world, job_options());
      One one(world, "mlp");
      Step step(job, "train", {&one.optimizer}, one.loss());
      one.net->parameters()[0].data().mul_(0.5);
      for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 2})) step(batch);
      one.net->parameters()[0].data().mul_(0.5);
      for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 4})) step(batch);
      if (world.leader()) hashes.push_back(replica::digest(replica::parameters_of(*one.net)));
    });
  }
  EXPECT_EQ(hashes.at(0), hashes.at(1));
}

TEST(OwnLoop, OfAnotherSeedOnOneWorkerIsAMismatch) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    JobOptions options = job_options();
    options.seed += static_cast<std::uint64_t>(world.rank());
    Job job(world, options);
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, one.loss());
    job.batches(data_of("mlp"), {.steps = 1});
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text, HasSubstr("seed is 11 on rank 0 and 12 on rank 1"));
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
}  // namespace lockstep::testing::loops
