// Asynchronous steps. The result is what the definition says for the order in which gradients were applied, and a replay of that
// order has its bits on any number of workers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/codec.h>
#include <lockstep/errors.h>
#include <lockstep/local_steps.h>
#include <lockstep/step.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "plan/order.h"
#include "tests/torch/asynchronous_jobs.h"
#include "tests/torch/folder.h"
#include "tests/torch/local_jobs.h"
#include "tests/torch/loops.h"
#include "torch/step/order_file.h"

namespace lockstep::testing::loops::asynchronous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kShards = 4;

const LocalSteps kFree = LocalSteps::stale(Asynchronous::kUnbounded, 3);

using How = LocalHow;
const How kFreeJob{.local = kFree};

// Whose backward takes so long. Not the loss itself: workers that are threads of one process run it one after the other.
torch::Tensor slow(torch::Tensor loss, int milliseconds) {
  loss.register_hook([milliseconds](const torch::Tensor& gradient) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return gradient;
  });
  return loss;
}

std::map<std::string, How> kinds() {
  std::map<std::string, How> few = {
      {"no bound", kFreeJob},
      {"slower and compensated", {.local = with(kFree, true, 0.5)}},
      {"a backup and BatchNorm", {.local = LocalSteps::with_backups(1), .model = "cnn"}},
  };
  if (std::getenv("LOCKSTEP_TEST_FULL") == nullptr) return few;
  std::map<std::string, How> all = {
      {"SGD with momentum", {.local = kFree, .optimizer = "sgd"}},
      {"a bound of one step", {.local = LocalSteps::stale(1, 5), .optimizer = "rmsprop"}},
      {"one round", {.local = LocalSteps::stale(2)}},
      {"clipped by norm", {.local = kFree, .optimizer = "clipped"}},
      {"clipped by value", {.local = kFree, .optimizer = "limited"}},
      {"BatchNorm and dropout", {.local = kFree, .model = "cnn"}},
      {"a backup", {.local = LocalSteps::with_backups(1, 3)}},
      {"three backups, clipped", {.local = LocalSteps::with_backups(3, 5), .optimizer = "clipped"}},
      {"gpt", {.local = kFree, .model = "gpt"}},
  };
  all.merge(few);
  return all;
}

// Workers that share no memory cannot clip the mean of a step: nobody has all of it.
bool wants_shared_memory(const How& how) {
  return how.local.asynchronous->backups > 0 && how.optimizer == "clipped";
}

// A worker that is alone records, too: its order is that of the tasks.
TEST(AsynchronousJob, AReplayHasItsBitsOnAnyNumberOfWorkersOfAnyEngine) {
  for (const auto& [name, how] : kinds()) {
    for (const auto& [recorder, recorders] :
         {std::pair("shm", 1), std::pair("shm", 4), std::pair("tcp", 3)}) {
      if (wants_shared_memory(how) && recorder == std::string("tcp")) continue;
      SCOPED_TRACE(fmt::format("{}, of {} workers with {}", name, recorders, recorder));
      const Folder folder;
      const std::string order = folder / "order";
      const How recorded = recording(how, order);
      const std::string expected =
          same_on_all(recorders, recorder, [&](World& world) { return trained(world, recorded); });
      const How again = replaying(recording(how, folder / "again"), order);
      for (const auto& [engine, workers] :
           {std::pair("shm", 4), std::pair("shm", 3), std::pair("shm", 2), std::pair("thread", 1),
            std::pair("tcp", 2), std::pair("tcp", 4)}) {
        if (wants_shared_memory(how) && engine == std::string("tcp")) continue;
        EXPECT_EQ(same_on_all(workers, engine, [&](World& world) { return trained(world, again); }),
                  expected)
            << workers << " workers, " << engine;
        EXPECT_EQ(steps::load_order(folder / "again").rounds, steps::load_order(order).rounds);
      }
    }
  }
}

TEST(AsynchronousJob, OnOneWorkerEachGradientSeesAllUpdatesBefore) {
  const Folder folder;
  same_on_all(1, "thread", [&](World& world) {
    return trained(world, recording({.local = LocalSteps::stale(1, 100)}, folder / "order"));
  });
  const plan::Order order = steps::load_order(folder / "order");
  ASSERT_EQ(order.rounds.size(), 1U);
  std::int64_t number = 0;
  for (const plan::OrderedUpdate& update : order.rounds[0].updates)
    EXPECT_EQ(update.seen, number++);
}

// One worker is slow in each of its tasks.
TEST(AsynchronousJob, NoGradientIsBegunBeforeThoseBeyondTheBoundAreApplied) {
  for (const auto& [engine, bound] :
       {std::pair("shm", std::int64_t{1}), std::pair("shm", std::int64_t{2}),
        std::pair("tcp", std::int64_t{1})}) {
    const Folder folder;
    in_world(4, engine, [&, bound = bound](World& world) {
      const How how = recording({.local = LocalSteps::stale(bound, 20)}, folder / "order");
      Job job(world, options_of(how));
      One one(world, how.model);
      Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
        return slow(models::loss(*one.net, shard.batch), world.rank() == 3 ? 10 : 0);
      });
      for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 40})) step(batch);
    });
    const plan::Order order = steps::load_order(folder / "order");
    std::int64_t most_ahead = 0;
    for (const plan::RoundOrder& round : order.rounds) {
      for (const plan::OrderedUpdate& update : round.updates) {
        for (std::size_t later = static_cast<std::size_t>(update.seen);
             later < round.updates.size(); ++later) {
          const std::int64_t ahead = update.step - round.updates[later].step;
          most_ahead = std::max(most_ahead, ahead);
        }
      }
    }
    EXPECT_EQ(most_ahead, bound);  // with a slow worker the others reach it
  }
}

// The mean of the gradients that were there first is a synchronous step with their samples. One worker takes shards in order, so it
// leaves the last one out.
TEST(AsynchronousJob, WithBackupsAStepIsTheMeanOfThoseThatCameFirst) {
  const How how{.local = LocalSteps::with_backups(1, 2), .optimizer = "plain", .steps = 2};
  std::vector<torch::Tensor> weights;
  same_on_all(1, "thread", [&](World& world) { return trained(world, how, &weights); });
  const auto batches = batches_of_job(how);
  auto net = net_of(how.model);
  const auto first = copies_of(*net);
  for (std::int64_t step = 0; step < how.steps; ++step) {
    std::vector<torch::Tensor> sums;
    double samples = 0;
    for (int shard = 0; shard < kShards - 1; ++shard) {
      const Batch& batch = batches.at({step, shard});
      const auto gradients = torch::autograd::grad({models::loss(*net, batch)}, net->parameters());
      const auto weight = static_cast<double>(batch.samples);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (shard == 0)
          sums.push_back(gradients[i] * weight);
        else
          sums[i] = sums[i] + gradients[i] * weight;
      }
      samples += weight;
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < sums.size(); ++i)
      net->parameters()[i].sub_(sums[i] * (1 / samples) * 0.1);
  }
  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_TRUE(torch::equal(weights[i], first[i] - (first[i] - net->parameters()[i]))) << i;
}

// Nobody waits for the slow one, its gradients are dropped, and the program hears of it.
TEST(AsynchronousJob, WithBackupsASlowWorkerIsLeftOut) {
  for (const char* const engine : {"shm", "tcp"}) {
    const Folder folder;
    in_world(4, engine, [&](World& world) {
      const How how = recording({.local = LocalSteps::with_backups(1, 10)}, folder / "order");
      JobOptions options = options_of(how);
      Job job(world, options);
      One one(world, how.model);
      Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
        return slow(models::loss(*one.net, shard.batch), world.rank() == 3 ? 200 : 5);
      });
      for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 20})) {
        const Outcome outcome = step(batch);
        EXPECT_DOUBLE_EQ(outcome.dropped, 10.0 / 37) << "three of the steps have a short batch";
        EXPECT_EQ(one.optimizer.steps(), batch.step() + 10);
      }
    });
    for (const plan::RoundOrder& round : steps::load_order(folder / "order").rounds) {
      std::map<std::int64_t, std::int64_t> of_step, seen;
      for (const plan::OrderedUpdate& update : round.updates) {
        ++of_step[update.step];
        EXPECT_TRUE(seen.emplace(update.step, update.seen).first->second == update.seen)
            << "a step has one set of weights";
      }
      for (const auto& [step, tasks] : of_step) EXPECT_LT(tasks, kShards) << step;
    }
  }
}

// A slow worker has fewer tasks: the others do not wait for its share.
TEST(AsynchronousJob, ASlowWorkerTakesFewerTasks) {
  for (const char* const engine : {"shm", "tcp"}) {
    std::vector<int> tasks(3);
    in_world(3, engine, [&](World& world) {
      const How how{.local = LocalSteps::stale(Asynchronous::kUnbounded, 20), .shards = 3};
      JobOptions options = options_of(how);
      options.global_batch = 15;
      Job job(world, options);
      One one(world, how.model);
      Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
        ++tasks[static_cast<std::size_t>(world.rank())];
        return slow(models::loss(*one.net, shard.batch), world.rank() == 2 ? 60 : 10);
      });
      for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 20})) step(batch);
    });
    EXPECT_LT(tasks[2] * 2, tasks[0]);
    EXPECT_LT(tasks[2] * 2, tasks[1]);
  }
}

TEST(AsynchronousJob, HasTheBitsOfThePlainProgramForAnyOrder) {
  for (const std::string optimizer : {"plain", "sgd", "adamw"}) {
    for (const LocalSteps& local : {kFree, with(kFree, true, 0), with(kFree, false, 0.5)}) {
      SCOPED_TRACE(optimizer + ", " + to_string(local));
      const Folder folder;
      const How how{.local = local, .optimizer = optimizer, .steps = 2};
      base::write_file(folder / "order", head_of(how) + plan::order_text(kOrder));
      const Plain plain(how, kOrder);
      for (const char* const engine : {"shm", "tcp"}) {
        std::vector<torch::Tensor> weights;
        same_on_all(2, engine, [&](World& world) {
          return trained(world, replaying(how, folder / "order"), &weights);
        });
        ASSERT_EQ(weights.size(), plain.weights.size());
        for (std::size_t i = 0; i < weights.size(); ++i)
          EXPECT_TRUE(torch::equal(weights[i], plain.weights[i])) << engine << " " << i;
      }
    }
  }
}

TEST(AsynchronousJob, AReplayGoesOnFromItsCheckpointOnAnotherNumberOfWorkers) {
  for (const auto& [name, kind] : kinds()) {
    SCOPED_TRACE(name);
    How how = kind;
    how.local.stages[0].steps = 2;
    how.steps = 8;
    const Folder folder;
    // It records in two parts, too: the second one keeps what the first has written.
    How recorded = recording(how, folder / "order");
    recorded.checkpoint = folder / "recorded";
    recorded.steps = 4;
    same_on_all(3, "shm", [&](World& world) { return trained(world, recorded); });
    recorded.steps = 8;
    const std::string expected =
        same_on_all(4, "shm", [&](World& world) { return trained(world, recorded); });
    EXPECT_EQ(steps::load_order(folder / "order").rounds.size(), 4U);
    How again = replaying(how, folder / "order");
    EXPECT_EQ(same_on_all(2, "shm", [&](World& world) { return trained(world, again); }), expected);
    again.checkpoint = folder / "again";
    again.steps = 4;
    same_on_all(1, "thread", [&](World& world) { return trained(world, again); });
    again.steps = 8;
    EXPECT_EQ(same_on_all(3, wants_shared_memory(how) ? "shm" : "tcp",
                          [&](World& world) { return trained(world, again); }),
              expected);
  }
}

// An update has the learning rate of its step, on every worker. A loss that reads the rate gets that of its own step.
TEST(AsynchronousJob, AnUpdateHasTheRateOfItsStep) {
  const auto rate = [](std::int64_t step) { return 1e-3 * static_cast<double>(step + 1); };
  const auto run = [&](World& world, const How& how) {
    Job job(world, options_of(how));
    auto net = net_of(how.model);
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, optim::SGDOptions{.lr = 1, .momentum = 0.9},
                         {{{net->parameters()[0]}, optim::SGDOptions{.lr = 0.5, .momentum = 0.9}}});
    torch::optim::StepLR scheduler(optimizer, 1000, 0.1);  // it is looked at, too
    Step step(job, "train", {&optimizer},
              [&](const Shard& shard) {
                EXPECT_EQ(optimizer.lr(), rate(shard.step));
                return models::loss(*net, shard.batch);
              },
              {.learning_rate = rate});
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = how.steps}))
      step(batch);
    EXPECT_EQ(optimizer.lr(), rate(how.steps - 1));
    return job.weights_sha256();
  };
  const Folder folder;
  const How how{.local = kFree};
  const std::string order = folder / "order";
  const std::string expected =
      same_on_all(4, "shm", [&](World& world) { return run(world, recording(how, order)); });
  for (const auto& [engine, workers] :
       {std::pair("tcp", 3), std::pair("shm", 2), std::pair("thread", 1)}) {
    EXPECT_EQ(same_on_all(workers, engine,
                          [&](World& world) { return run(world, replaying(how, order)); }),
              expected)
        << workers << " workers, " << engine;
  }
}

// Some own nothing then. The parameter is of float64, and does not lie in memory row by row.
TEST(AsynchronousJob, WorkersMayBeMoreThanThereArePieces) {
  const auto run = [](World& world, const How& how) {
    Job job(world, options_of(how));
    const torch::Tensor weights =
        torch::ones({kClasses, 10}, torch::kFloat64).t().mul_(0.1).set_requires_grad(true);
    Replica model(world, {{"weights", weights}}, {});
    optim::AdamW optimizer(model, {.lr = 1e-2});
    Step step(job, "train", {&optimizer}, [&](const Shard& shard) {
      const auto outputs = shard.batch.data.to(torch::kFloat64).mm(weights);
      return torch::nn::functional::cross_entropy(outputs, shard.batch.target);
    });
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = how.steps})) step(batch);
    return job.weights_sha256();
  };
  const Folder folder;
  const How how{.local = kFree};
  const std::string order = folder / "order";
  const std::string expected =
      same_on_all(4, "tcp", [&](World& world) { return run(world, recording(how, order)); });
  for (const auto& [engine, workers] : {std::pair("tcp", 3), std::pair("shm", 2)}) {
    EXPECT_EQ(same_on_all(workers, engine,
                          [&](World& world) { return run(world, replaying(how, order)); }),
              expected)
        << workers << " workers, " << engine;
  }
}

// Nobody waits for a task of a worker that has failed.
TEST(AsynchronousJob, IfOneWorkersLossThrowsTheOthersHearOfIt) {
  for (const auto& [engine, failing] :
       {std::pair("shm", 1), std::pair("tcp", 1), std::pair("tcp", 0)}) {
    const auto outcomes = outcomes_in_world(
        3,
        [&, failing = failing](World& world) {
          const How how{.local = LocalSteps::stale(Asynchronous::kUnbounded, 20), .shards = 3};
          JobOptions options = options_of(how);
          options.global_batch = 15;
          Job job(world, options);
          One one(world, how.model);
          Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
            if (world.rank() == failing && shard.step > 3) throw BadInput("this worker cannot");
            return models::loss(*one.net, shard.batch);
          });
          for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 20}))
            step(batch);
        },
        engine);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].text,
                  HasSubstr(rank == failing ? "this worker cannot"
                                            : fmt::format("rank {} has left the world", failing)));
    }
  }
}

template <typename Body>
std::string refusal(const Body& body) {
  try {
    World world = World::over(connect_alone());
    body(world);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::string refused(const How& how) {
  return refusal([&](World& world) { trained(world, how); });
}

TEST(AsynchronousOptions, WhatMakesNoSenseIsRefusedByName) {
  How how = kFreeJob;
  how.local.asynchronous->staleness = -3;
  EXPECT_THAT(refused(how), HasSubstr("a staleness of -3"));
  EXPECT_THAT(refused({.local = LocalSteps::with_backups(4)}), HasSubstr("4 backups of 4 shards"));
  EXPECT_THAT(refused({.local = LocalSteps::stale(2, 1 << 19)}),
              HasSubstr("a round of 524288 steps has 2097152 gradients of 4 shards"));
  how = kFreeJob;
  how.local.state = LocalState::kReset;
  EXPECT_THAT(refused(how), HasSubstr("one state"));
  const auto with_model = [](const std::string& codec, bool layer_wise) {
    return refusal([&](World& world) {
      Job job(world, options_of(kFreeJob));
      auto net = net_of("mlp");
      auto model = data_parallel(net, world, {.codec = codec::parse(codec)});
      std::unique_ptr<optim::Optimizer> optimizer = optimizer_of("plain", model);
      if (layer_wise) optimizer = std::make_unique<optim::LAMB>(model, optim::LAMBOptions{});
      const Step step(job, "train", {optimizer.get()},
                      [&](const Shard& shard) { return models::loss(*net, shard.batch); });
    });
  };
  EXPECT_THAT(with_model("none", true), HasSubstr("a rate for each layer"));
  EXPECT_THAT(with_model("bf16", false), HasSubstr("is not encoded"));
  EXPECT_THAT(refusal([](World& world) {
                Job job(world, options_of(kFreeJob));
                One one(world, "mlp"), other(world, "mlp");
                const Step step(job, "train", {&one.optimizer, &other.optimizer}, one.loss());
              }),
              HasSubstr("has one optimizer"));
}

// A gradient that is not finite is no update, wherever in it the bad element is, and nobody goes on.
TEST(AsynchronousJob, AGradientThatIsNotFiniteAndIsClippedEndsTheJob) {
  for (const LocalSteps& local : {kFree, LocalSteps::with_backups(1, 3)}) {
    for (const optim::Norm norm : {optim::Norm::kEuclidean, optim::Norm::kLargest}) {
      const Folder folder;
      const auto outcomes = outcomes_in_world(
          2,
          [&](World& world) {
            const How how = recording({.local = local}, folder / "order");
            Job job(world, options_of(how));
            One one(world, how.model);
            one.optimizer.set_clip_norm(1, norm);
            Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
              auto loss = models::loss(*one.net, shard.batch);
              if (shard.step != 4 || shard.index > 1) return loss;  // one backup may drop one
              return loss + one.net->parameters()[0].flatten()[0] * std::nan("");
            });
            for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 6}))
              step(batch);
          },
          "shm");
      EXPECT_THAT(outcomes[0].text + outcomes[1].text, HasSubstr("training has diverged"));
      EXPECT_EQ(steps::load_order(folder / "order").rounds.size(), 1U) << "of step 0 only";
    }
  }
}

TEST(AsynchronousOptions, AMeanThatNobodyHasIsNotClipped) {
  for (const auto& outcome : outcomes_in_world(
           2,
           [&](World& world) {
             trained(world, {.local = LocalSteps::with_backups(1, 3), .optimizer = "clipped"});
           },
           "tcp"))
    EXPECT_THAT(outcome.text, HasSubstr("steps with backups cannot clip by norm"));
}

TEST(AsynchronousOptions, AnOrderThatIsNotThisJobsIsRefused) {
  const Folder folder;
  const std::string order = folder / "order";
  EXPECT_THAT(refused(replaying(kFreeJob, order)), HasSubstr("order"));
  base::write_file(order, "{}\n");
  EXPECT_THAT(refused(replaying(kFreeJob, order)), HasSubstr("line 1 is not the head of an order"));
  EXPECT_THAT(refused(recording({.local = LocalSteps::stale(1, 3), .checkpoint = folder / "run"},
                                folder / "no/such/folder/order")),
              HasSubstr("no/such/folder"));

  const std::string other = folder / "other";
  How how{.local = kFree, .steps = 3};
  refused(recording(how, other));
  how.shards = 2;
  EXPECT_THAT(refused(replaying(how, other)), HasSubstr("a job with 4 shards"));
  how.shards = kShards;
  how.steps = 2;
  EXPECT_THAT(refused(replaying(how, other)), HasSubstr("ends before step 3, and here before"));
  how.steps = 6;
  EXPECT_THAT(refused(replaying(how, other)), HasSubstr("the steps before 3 only"));
  how.steps = 3;
  base::write_file(order, head_of(how) + "round 0 3 1\n0 0 0\n");
  EXPECT_THAT(refused(replaying(how, order)), HasSubstr("has other shards"));
}

TEST(AsynchronousOptions, AnOrderOfAnotherJobIsRefused) {
  const Folder folder;
  const How how{.local = kFree, .steps = 3};
  refused(recording(how, folder / "order"));
  How other = how;
  other.optimizer = "rmsprop";
  EXPECT_THAT(refused(replaying(other, folder / "order")), HasSubstr("the order of another job"));
  other = how;
  other.local.asynchronous->delay_compensation = 1;
  EXPECT_THAT(refused(replaying(other, folder / "order")), HasSubstr("the order of another job"));
  // Nor does a job that goes on from a checkpoint add to it.
  other.checkpoint = folder / "run";
  refused(other);
  other.steps = 6;
  EXPECT_THAT(refused(recording(other, folder / "order")), HasSubstr("the order of another job"));
}

// It would be waited for what never comes.
TEST(AsynchronousOptions, AnOrderThatNoStepsWithBackupsHaveIsRefused) {
  const Folder folder;
  const std::string order = folder / "order";
  const How how{.local = LocalSteps::with_backups(2, 2), .steps = 2};
  for (const char* const updates : {"0 0 0\n0 1 0\n0 2 0\n1 0 3\n", "0 0 0\n0 1 1\n1 0 2\n1 1 2\n",
                                    "0 0 0\n1 1 0\n0 1 0\n1 0 2\n"}) {
    base::write_file(order, head_of(how) + "round 0 2 4\n" + updates);
    EXPECT_THAT(refused(replaying(how, order)), HasSubstr("has other shards")) << updates;
  }
}

TEST(AsynchronousOptions, AFileThatIsNoOrderIsNotOverwritten) {
  const Folder folder;
  const std::string letter = folder / "letter";
  base::write_file(letter, "Dear reader,\n");
  EXPECT_THAT(refused(recording(kFreeJob, letter)),
              HasSubstr("line 1 is not the head of an order"));
  EXPECT_EQ(std::ifstream(letter).peek(), 'D');
}

}  // namespace
}  // namespace lockstep::testing::loops::asynchronous
