// The Trainer finds bits that nobody wrote: they are flipped here, in the memory of one worker, while it trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/trainer.h>

#include <fstream>

#include "formats/checkpoint_file.h"
#include "plan/slices.h"
#include "tests/torch/folder.h"
#include "tests/torch/nets.h"
#include "torch/divergence/check.h"
#include "torch/replica/replicated.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kStepsOfTheJob = 8;
constexpr std::int64_t kFlipAt = 3;

void flip(void* memory, std::size_t element, int bit) {
  static_cast<std::uint32_t*>(memory)[element] ^= std::uint32_t{1} << bit;
}

// In the memory that an update reads. The program's tensors may be a private view of it, in which only the program writes.
void flip_weight(const TrainerParts& parts, const std::string& name, std::size_t element, int bit) {
  const replica::Replicated& model = replica::inside(parts.model);
  for (const plan::Entry& entry : model.layout().entries()) {
    if (entry.name == name) flip(model.parameters().data() + entry.offset, element, bit);
  }
}

// One run on one worker, and what it does to itself.
struct Attempt {
  bool adamw = false;
  double clip_norm = 0;
  bool half = false;
  double ema = 0;
  TrainerOptions options;
  TrainerHooks hooks;
  std::function<void(const TrainerParts&, std::int64_t step)> after_step;
  std::function<void(const TrainerParts&)> in_forward;
  std::function<double(const Batch&)> weight;
};

TrainingResult train_on(World& world, Attempt run) {
  auto net = seeded<TwoLayers>(5, 40, 300, 10);
  const auto type = run.half ? torch::kBFloat16 : torch::kFloat32;
  net->to(type);
  auto model = data_parallel(net, world);
  std::shared_ptr<optim::Optimizer> optimizer;
  if (run.adamw) {
    optimizer = std::make_shared<optim::AdamW>(model, optim::AdamWOptions{.lr = 1e-2});
  } else {
    optimizer = std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  }
  optimizer->set_clip_norm(run.clip_norm);
  if (run.ema > 0) optimizer->set_ema(run.ema);
  auto parts = std::make_shared<TrainerParts>(TrainerParts{
      model, net.ptr(), optimizer, tensor_dataset(samples(1, {96, 40}), samples(2, {96, 10}))});
  parts->loss = [net, parts, run, type](const Batch& batch) mutable {
    if (run.in_forward) run.in_forward(*parts);
    return (net->forward(batch.data.to(type)) - batch.target).pow(2).mean();
  };
  parts->weight = run.weight;
  run.options.steps = kStepsOfTheJob;
  run.options.global_batch = 16;
  if (run.options.shards == 0) run.options.shards = 8;
  if (run.after_step) {
    run.hooks.on_step = [parts, run](const StepRecord& record) {
      run.after_step(*parts, record.step);
    };
  }
  Trainer trainer(world, *parts, run.options, run.hooks);
  const TrainingResult result = trainer.run();
  parts->loss = nullptr;  // which holds the parts
  return result;
}

// The owner of an element of first.weight, on so many workers that share memory.
int owner(int workers, std::size_t element) {
  const plan::Layout layout({{"first.weight", DType::kFloat32, 300 * 40},
                             {"first.bias", DType::kFloat32, 300},
                             {"second.weight", DType::kFloat32, 3000},
                             {"second.bias", DType::kFloat32, 10}});
  const plan::Pieces pieces = plan::plan_pieces(layout, workers);
  for (int worker = 0; worker < workers; ++worker) {
    const auto rank = static_cast<std::size_t>(worker);
    for (std::size_t i = pieces.first_of_worker[rank]; i < pieces.first_of_worker[rank + 1]; ++i) {
      const plan::Stretch& piece = pieces.all[i];
      if (layout.entries()[piece.entry].name == "first.weight" && piece.first <= element &&
          element < piece.first + piece.count)
        return worker;
    }
  }
  return -1;
}

void expect_all(const std::vector<Outcome>& outcomes, const std::vector<int>& ranks,
                const std::vector<std::string>& parts) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
    EXPECT_EQ(outcome.ranks, ranks) << outcome.text;
    for (const std::string& part : parts) EXPECT_THAT(outcome.text, HasSubstr(part));
  }
}

TEST(Divergence, AnUndisturbedJobIsNotStoppedAndHasTheBitsOfAnUncheckedOne) {
  const WithoutOneDnn without_onednn;
  for (const std::string engine : {"shm", "thread"}) {
    for (const Attempt& kind : {Attempt{.ema = 0.9}, Attempt{.adamw = true, .clip_norm = 0.05},
                                Attempt{.half = true, .ema = 0.9}}) {
      std::string digests[2];
      for (const bool checked : {false, true}) {
        in_world(3, engine, [&](World& world) {
          Attempt run = kind;
          run.options.check_divergence = checked;
          const auto result = train_on(world, run);
          if (world.leader()) digests[checked ? 1 : 0] = result.weights_sha256;
        });
      }
      EXPECT_EQ(digests[0], digests[1]) << engine << kind.adamw << kind.half;
    }
  }
}

TEST(Divergence, AFlippedWeightIsFoundWhereverItIsAndTheOwnerNamed) {
  for (const std::size_t element : {0UL, 5000UL, 11'999UL}) {
    const auto outcomes = outcomes_in_world(
        2,
        [&](World& world) {
          Attempt run;
          run.after_step = [&](const TrainerParts& parts, std::int64_t step) {
            if (world.rank() == 1 && step == kFlipAt)
              flip_weight(parts, "first.weight", element, 3);
          };
          train_on(world, run);
        },
        "shm");
    expect_all(outcomes, {owner(2, element)},
               {"step 4: a bit of first.weight or of its optimizer state"});
  }
}

TEST(Divergence, AFlippedOptimizerStateIsFound) {
  for (const bool adamw : {false, true}) {
    const auto outcomes = outcomes_in_world(
        3,
        [&](World& world) {
          Attempt run{.adamw = adamw, .clip_norm = 0.5, .ema = adamw ? 0.9 : 0};
          run.after_step = [&](const TrainerParts& parts, std::int64_t step) {
            if (world.rank() != 2 || step != kFlipAt) return;
            const auto state = parts.optimizer->state();
            const auto last = std::find_if(state.rbegin(), state.rend(), [](const auto& named) {
              return named.name.ends_with("/first.weight");
            });
            flip(last->tensor.data_ptr(), 7000, 31);
          };
          train_on(world, run);
        },
        "shm");
    expect_all(outcomes, {owner(3, 7000)}, {"first.weight or of its optimizer state"});
  }
}

// Worker 1 hosts the last shards; before the forward of the last one it flips a bit of what an earlier one left.
TEST(Divergence, AFlippedGradientOnItsWayToTheUpdateIsFoundAndItsWorkerNamed) {
  at::globalContext().setUserEnabledMkldnn(false);  // knows no bfloat16 on some processors
  for (const Attempt& kind : {Attempt{}, Attempt{.clip_norm = 0.5}, Attempt{.half = true}}) {
    for (const int shards : {4, 8}) {
      const auto outcomes = outcomes_in_world(
          2,
          [&](World& world) {
            Attempt run = kind;
            run.options.shards = shards;
            int forwards = 0;
            const int each = run.options.shards / 2;
            run.in_forward = [&, each](const TrainerParts& parts) {
              if (world.rank() != 1 || ++forwards != (kFlipAt + 1) * each) return;
              flip(replica::inside(parts.model).banks().at(0).memory().data(), 20, 12);
            };
            train_on(world, run);
          },
          "shm");
      expect_all(outcomes, {1}, {"step 3: a bit of the gradient of", "worker 1"});
    }
  }
}

TEST(Divergence, AFlippedWeightInAPrivateCopyIsFoundByItsWorker) {
  const auto outcomes = outcomes_in_world(2, [&](World& world) {
    Attempt run;
    run.after_step = [&](const TrainerParts& parts, std::int64_t step) {
      if (world.rank() == 1 && step == kFlipAt) flip_weight(parts, "second.bias", 2, 0);
    };
    train_on(world, run);
  });
  expect_all(outcomes, {1}, {"step 4: a bit of second.bias", "worker 1"});
}

// Between the reduction and the update, on one of three copies.
TEST(Divergence, OfThreeCopiesTheOddOneOutIsNamed) {
  const auto outcomes = outcomes_in_world(3, [&](World& world) {
    Attempt run;
    auto flipped = std::make_shared<torch::nn::Module*>(nullptr);
    run.in_forward = [flipped](const TrainerParts& parts) { *flipped = parts.module.get(); };
    run.hooks.on_gradients = [flipped, rank = world.rank()](std::int64_t step) {
      if (rank == 2 && step == kFlipAt)
        flip((*flipped)->named_parameters()["second.weight"].grad().data_ptr(), 1000, 20);
    };
    train_on(world, run);
  });
  expect_all(
      outcomes, {2},
      {"step 3: workers have applied different gradients to second.weight (elements 0 to 2999)",
       "worker 2 has other bits than the rest"});
}

// On several hosts there is one copy on each. A host has it from all its workers, of which one owns the piece.
TEST(Divergence, OfThreeHostsTheOddOneOutIsNamedByItsWorkers) {
  const auto outcomes = outcomes_in_world(
      5,
      [&](World& world) {
        Attempt run;
        auto flipped = std::make_shared<torch::nn::Module*>(nullptr);
        run.in_forward = [flipped](const TrainerParts& parts) { *flipped = parts.module.get(); };
        run.hooks.on_gradients = [flipped, rank = world.rank()](std::int64_t step) {
          if (rank / 2 == 1 && step == kFlipAt)
            flip((*flipped)->named_parameters()["second.weight"].grad().data_ptr(), 1000, 20);
        };
        train_on(world, run);
      },
      kTcpHosts);
  expect_all(outcomes, {2, 3},
             {"step 3: workers have applied different gradients to second.weight",
              "workers 2, 3 have other bits than the rest"});
}

TEST(Divergence, AFlippedWeightOfAHostIsFoundByItsOwner) {
  const auto outcomes = outcomes_in_world(
      4,
      [&](World& world) {
        Attempt run;
        run.after_step = [&](const TrainerParts& parts, std::int64_t step) {
          if (world.rank() == 3 && step == kFlipAt) flip_weight(parts, "second.bias", 2, 0);
        };
        train_on(world, run);
      },
      kTcpHosts);
  expect_all(outcomes, {2}, {"step 4: a bit of second.bias", "worker 2"});
}

TEST(Divergence, OfTwoCopiesAReplayFromTheCheckpointNamesTheWrongOne) {
  for (const bool has_checkpoint : {true, false}) {
    const Folder folder;
    const auto outcomes = outcomes_in_world(2, [&](World& world) {
      Attempt run;
      run.options.checkpoint_every_steps = 2;
      if (has_checkpoint) run.options.checkpoint_directory = folder.path();
      auto module = std::make_shared<torch::nn::Module*>(nullptr);
      auto done = std::make_shared<bool>(false);
      run.in_forward = [module](const TrainerParts& parts) { *module = parts.module.get(); };
      run.hooks.on_gradients = [module, done, rank = world.rank()](std::int64_t step) {
        if (rank != 1 || step != kFlipAt || std::exchange(*done, true)) return;
        flip((*module)->named_parameters()["first.bias"].grad().data_ptr(), 7, 15);
      };
      train_on(world, run);
    });
    if (has_checkpoint) {
      expect_all(outcomes, {1},
                 {"step 3: workers have applied different gradients to first.bias",
                  "rerun of the step gives the same on all of them, and worker 1 had other bits"});
    } else {
      expect_all(outcomes, {}, {"first.bias", "nobody can say which"});
    }
  }
}

// After the last update there is none that would compare: the end of the job does, and no checkpoint is written.
TEST(Divergence, AWeightThatIsFlippedAfterTheLastUpdateIsFoundBeforeItIsSaved) {
  for (const std::string engine : {"shm", "thread"}) {
    const Folder folder;
    const auto outcomes = outcomes_in_world(
        2,
        [&](World& world) {
          Attempt run;
          run.options.checkpoint_directory = folder.path();
          run.options.checkpoint_every_steps = 100;
          run.after_step = [&](const TrainerParts& parts, std::int64_t step) {
            if (world.rank() == 1 && step == kStepsOfTheJob - 1)
              flip_weight(parts, "first.weight", 3, 30);
          };
          train_on(world, run);
        },
        engine);
    expect_all(outcomes, {engine == "shm" ? owner(2, 3) : 1}, {"step 7: a bit of first.weight"});
    EXPECT_FALSE(formats::holds_checkpoint(folder.path()));
  }
}

// What a Trainer leaves behind: the same model trains on with more banks, without the check, and in a loop of its own.
TEST(Divergence, AModelIsItsUsersAgainAfterTheTrainer) {
  in_world(2, "shm", [](World& world) {
    auto net = seeded<TwoLayers>(5);
    auto model = data_parallel(net, world);
    auto optimizer =
        std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    TrainerParts parts{model, net.ptr(), optimizer,
                       tensor_dataset(samples(1, {64, 8}), torch::zeros({64}))};
    parts.loss = [net](const Batch& batch) mutable {
      return net->forward(batch.data).pow(2).mean();
    };
    TrainerOptions options;
    options.steps = 2;
    options.global_batch = 16;
    options.shards = 2;
    Trainer(world, parts, options).run();
    EXPECT_FALSE(net->first->weight.grad().defined());
    {
      torch::NoGradGuard no_grad;
      net->first->weight.mul_(0.5);
    }
    model->forward(samples(7, {4, 8})).pow(2).mean().backward();
    optimizer->step();
    optimizer->zero_grad();
    options.shards = 8;
    Trainer(world, parts, options).run();
    options.shards = 16;
    TrainerHooks hooks;
    bool defined = true;
    hooks.on_gradients = [&](std::int64_t) {
      for (const torch::Tensor& parameter : net->parameters())
        defined = defined && parameter.grad().defined();
    };
    Trainer(world, parts, options, hooks).run();
    EXPECT_TRUE(defined);
    world.comm().barrier().wait();
  });
}

TEST(Divergence, TheMajorityIsRightIfThereIsOne) {
  using divergence::minority;
  EXPECT_EQ(minority({1, 1, 2}), std::vector<int>{2});
  EXPECT_EQ(minority({1, 2, 2, 2, 3}), (std::vector<int>{0, 4}));
  EXPECT_EQ(minority({1, 2}), std::vector<int>{});
  EXPECT_EQ(minority({1, 1, 2, 2}), std::vector<int>{});
  EXPECT_EQ(minority({1, 2, 3}), std::vector<int>{});
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(HashLogs, AreTheSameOnAnyNumberOfWorkersAndTheFirstDifferenceIsNamed) {
  const Folder folder;
  const auto logged = [&](int workers, const std::string& engine, const std::string& name,
                          std::int64_t spoil_at) {
    in_world(workers, engine, [&](World& world) {
      Attempt run;
      run.options.hash_log = folder / name;
      run.options.check_divergence = spoil_at < 0;
      run.after_step = [&](const TrainerParts& parts, std::int64_t step) {
        if (step == spoil_at) flip_weight(parts, "second.bias", 2, 0);
      };
      train_on(world, run);
    });
  };
  logged(1, "thread", "one", -1);
  logged(3, "shm", "three", -1);
  logged(4, "thread", "four", -1);
  EXPECT_FALSE(text_of(folder / "one").empty());
  EXPECT_EQ(text_of(folder / "three"), text_of(folder / "one"));
  EXPECT_EQ(text_of(folder / "four"), text_of(folder / "one"));

  const auto verified = [&](const std::string& log, std::int64_t until) {
    std::int64_t steps = 0;
    in_world(2, "shm", [&](World& world) {
      Attempt run;
      run.options.verify_log = folder / log;
      run.options.verify_until = until;
      const auto result = train_on(world, run);
      if (world.leader()) steps = result.verified;
    });
    return steps;
  };
  EXPECT_EQ(verified("one", -1), kStepsOfTheJob);
  EXPECT_EQ(verified("one", 4), 5);
  logged(1, "thread", "spoilt", 4);
  try {
    verified("spoilt", -1);
    FAIL() << "the bits differ";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("step 5: "), HasSubstr("has other bits than in")));
    EXPECT_THAT(error.what(), HasSubstr("spoilt"));
  }
}

TEST(HashLogs, OfAnotherJobAreRefused) {
  const Folder folder;
  const auto attempt = [&](int shards) {
    in_world(1, [&](World& world) {
      Attempt run;
      run.options.shards = shards;
      if (shards == 8) {
        run.options.hash_log = folder / "log";
      } else {
        run.options.verify_log = folder / "log";
      }
      train_on(world, run);
    });
  };
  attempt(8);
  try {
    attempt(4);
    FAIL() << "another job";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("shards = 8"), HasSubstr("has 4")));
  }
}

TEST(HashLogs, AreNeitherOverwrittenByAnotherJobNorComparedWithThemselves) {
  const Folder folder;
  const auto attempt = [&](int shards, const std::string& compare_with) {
    in_world(1, [&](World& world) {
      Attempt run;
      run.options.shards = shards;
      run.options.hash_log = folder / "log";
      run.options.verify_log = compare_with;
      train_on(world, run);
    });
  };
  attempt(8, "");
  const std::string before = text_of(folder / "log");
  EXPECT_THROW(attempt(4, ""), Mismatch);
  EXPECT_THROW(attempt(8, folder.path() + "/./log"), BadInput);
  EXPECT_EQ(text_of(folder / "log"), before);
  attempt(8, "");
  EXPECT_EQ(text_of(folder / "log"), before);
  std::ofstream(folder / "log") << "something else\n";
  EXPECT_THROW(attempt(8, ""), BadInput);
  EXPECT_EQ(text_of(folder / "log"), "something else\n");
}

TEST(HashLogs, AResumedJobGoesOnWithItsLog) {
  const Folder folder;
  const auto run_to = [&](std::int64_t until, int workers, const std::string& log, bool resumes) {
    in_world(workers, "shm", [&](World& world) {
      Attempt run;
      run.options.hash_log = folder / log;
      if (resumes) run.options.existing_checkpoint = ExistingCheckpoint::kResume;
      run.options.checkpoint_directory = until < kStepsOfTheJob || resumes ? folder / "kept" : "";
      std::atomic<bool> stop{false};
      run.options.stop = &stop;
      run.after_step = [&](const TrainerParts&, std::int64_t step) {
        if (step + 2 >= until) stop = true;
      };
      train_on(world, run);
    });
  };
  run_to(kStepsOfTheJob + 9, 2, "whole", false);
  run_to(4, 2, "parts", false);
  const std::string half = text_of(folder / "parts");
  EXPECT_LT(half.size(), text_of(folder / "whole").size());
  run_to(kStepsOfTheJob + 9, 3, "parts", true);
  EXPECT_EQ(text_of(folder / "parts"), text_of(folder / "whole"));
}

// A weight for each shard: the gradient is the weighted mean of the shards' means, on any number of workers.
TEST(ShardWeights, DecideTheMeanAndTheNumberOfWorkersDoesNot) {
  const auto weight = [](const Batch& batch) { return 1 + batch.data.abs().sum().item<double>(); };
  const auto digest = [&](int workers, const std::string& engine, bool weighted) {
    std::string found;
    in_world(workers, engine, [&](World& world) {
      Attempt run;
      if (weighted) run.weight = weight;
      const auto result = train_on(world, run);
      if (world.leader()) found = result.weights_sha256;
    });
    return found;
  };
  const std::string expected = digest(1, "thread", true);
  EXPECT_EQ(digest(3, "shm", true), expected);
  EXPECT_EQ(digest(3, "thread", true), expected);
  EXPECT_EQ(digest(8, "shm", true), expected);
  EXPECT_NE(digest(1, "thread", false), expected);
}

TEST(ShardWeights, AreThoseOfTheFormula) {
  in_world(2, "shm", [](World& world) {
    auto plain = seeded<TwoLayers>(5);
    auto net = seeded<TwoLayers>(5);
    auto model = data_parallel(net, world);
    const auto data = samples(1, {8, 8});
    const auto weigh = [](const torch::Tensor& part) {
      return 1 + part.abs().sum().item<double>();
    };
    TrainerParts parts{model, net.ptr(),
                       std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.5}),
                       tensor_dataset(data, torch::zeros({8}))};
    parts.loss = [net](const Batch& batch) mutable {
      return net->forward(batch.data).pow(2).mean();
    };
    parts.weight = [&](const Batch& batch) { return weigh(batch.data); };
    TrainerOptions options;
    options.steps = 1;
    options.global_batch = 8;
    options.shards = 8;  // one sample each, in whatever order
    Trainer(world, parts, options).run();
    double total = 0;
    torch::Tensor loss = torch::zeros({});
    for (int i = 0; i < 8; ++i) {
      const auto sample = data.slice(0, i, i + 1);
      total += weigh(sample);
      loss = loss + weigh(sample) * plain->forward(sample).pow(2).mean();
    }
    (loss / total).backward();
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      const torch::Tensor p = plain->parameters()[i];
      EXPECT_LT(largest_difference(net->parameters()[i], p.detach() - 0.5 * p.grad()), 1e-6);
    }
    world.comm().barrier().wait();
  });
}

// So many that banks are added up on the way, and a short batch that leaves the last of them empty.
TEST(ManyShards, GiveTheSameBitsCheckedOrNotOnAnyNumberOfWorkers) {
  const auto digest = [](int workers, const std::string& engine, bool checked) {
    std::string found;
    in_world(workers, engine, [&](World& world) {
      auto net = seeded<TwoLayers>(5);
      auto model = data_parallel(net, world);
      TrainerParts parts{model, net.ptr(),
                         std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.1}),
                         tensor_dataset(samples(1, {32 + 9, 8}), torch::zeros({32 + 9}))};
      parts.loss = [net](const Batch& batch) mutable {
        return net->forward(batch.data).pow(2).mean();
      };
      TrainerOptions options;
      options.steps = 6;
      options.global_batch = 16;
      options.shards = 16;
      options.check_divergence = checked;
      const auto result = Trainer(world, parts, options).run();
      if (world.leader()) found = result.weights_sha256;
      world.comm().barrier().wait();
    });
    return found;
  };
  const std::string expected = digest(16, "shm", true);
  EXPECT_EQ(digest(1, "thread", true), expected);
  EXPECT_EQ(digest(1, "thread", false), expected);
  EXPECT_EQ(digest(3, "thread", true), expected);
  EXPECT_EQ(digest(3, "shm", false), expected);
}

TEST(ShardWeights, MustBeAboveZeroAndAllWorkersSaySo) {
  for (const std::string engine : {"shm", "thread"}) {
    const auto outcomes = outcomes_in_world(
        2,
        [](World& world) {
          Attempt run;
          run.weight = [&](const Batch&) { return world.rank() == 1 ? 0.0 : 1.0; };
          train_on(world, run);
        },
        engine);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kBadInput) << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr("shard 4 has no valid weight"));
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
