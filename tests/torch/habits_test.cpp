// What users of LibTorch write from habit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>
#include <lockstep/tensors.h>
#include <lockstep/uneven_inputs.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/torch/replica_cases.h"

namespace lockstep::testing::replicas {
namespace {

using ::testing::HasSubstr;

TEST(Habits, AModelIsCalledLikeItsModule) {
  in_world(1, [](World& world) {
    auto held = data_parallel(seeded<TwoLayers>(kSeed), world);
    auto shared = data_parallel(std::make_shared<TwoLayersImpl>(), world);
    EXPECT_TRUE(torch::equal(held(batch_of(0)), held->forward(batch_of(0))));
    EXPECT_EQ(shared(batch_of(0)).size(0), 6);
  });
}

TEST(Habits, NoSyncMayBeConditional) {
  constexpr int kParts = 3;
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    auto plain = seeded<TwoLayers>(kSeed);
    for (int part = 0; part < kParts; ++part) {
      const auto scope = model.no_sync(part + 1 < kParts);
      loss_of(*model, batch_of(world.rank() + 2 * part)).backward();
      for (int rank = 0; rank < 2; ++rank)
        (loss_of(*plain, batch_of(rank + 2 * part)) / 2).backward();
    }
    expect_close(gradients(*model), gradients(*plain));
  });
}

// As the DCGAN example saves and resumes.
TEST(Habits, ModelsAndOptimizersGoThroughTorchSaveAndTorchLoad) {
  std::vector<torch::Tensor> uninterrupted;
  std::string model_file;
  std::string optimizer_file;
  const auto train = [](auto& model, auto& optimizer, World& world, int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      loss_of(*model, batch_of(world.rank())).backward();
      optimizer.step();
    }
  };
  in_world(2, [&](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::AdamW optimizer(model, {.lr = 0.01});
    train(model, optimizer, world, 3);
    if (world.leader()) {
      std::ostringstream a;
      std::ostringstream b;
      torch::save(model, a);
      torch::save(optimizer, b);
      model_file = a.str();
      optimizer_file = b.str();
    }
    world.comm().barrier().wait();
    train(model, optimizer, world, 3);
    if (world.leader()) {
      for (const auto& one : model.parameters()) uninterrupted.push_back(one.tensor.clone());
    }
  });
  in_world(2, [&](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed + 1), world);
    optim::AdamW optimizer(model, {.lr = 0.5});
    std::istringstream a(model_file);
    std::istringstream b(optimizer_file);
    torch::load(model, a);
    torch::load(optimizer, b);
    EXPECT_EQ(optimizer.steps(), 3);
    EXPECT_EQ(optimizer.lr(), 0.01);
    train(model, optimizer, world, 3);
    for (std::size_t i = 0; i < uninterrupted.size(); ++i)
      EXPECT_TRUE(torch::equal(model.parameters()[i].tensor, uninterrupted[i])) << i;
    std::istringstream wrong(model_file);
    EXPECT_THROW(torch::load(optimizer, wrong), BadInput);
    optim::SGD other(model, {.lr = 0.5});
    std::istringstream again(optimizer_file);
    EXPECT_THROW(torch::load(other, again), Mismatch);
  });
}

TEST(Habits, SchedulersOfLibTorchDriveOurOptimizers) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 1},
                         {{{model->second->weight}, optim::SGDOptions{.lr = 0.5}}});
    torch::optim::StepLR scheduler(optimizer, 2, 0.1);
    std::vector<double> rates;
    for (int step = 0; step < 5; ++step) {
      loss_of(*model, batch_of(0)).backward();
      optimizer.step();
      optimizer.zero_grad();
      scheduler.step();
      rates.push_back(optimizer.lr());
    }
    auto plain = seeded<TwoLayers>(kSeed);
    torch::optim::SGD stock(plain->parameters(), 1);
    torch::optim::StepLR reference(stock, 2, 0.1);
    for (const double rate : rates) {
      reference.step();
      EXPECT_EQ(rate, stock.param_groups()[0].options().get_lr());
    }
    torch::optim::Optimizer& as_torch = optimizer;
    EXPECT_EQ(as_torch.param_groups()[1].options().get_lr(), 0.5 * rates.back());
    auto& options = static_cast<torch::optim::SGDOptions&>(as_torch.param_groups()[0].options());
    options.lr(0.25);
    EXPECT_THAT(optimizer.rates(), ::testing::ElementsAre(0.25, 0.5 * rates.back()));
    optimizer.set_lr(0.125);
    EXPECT_EQ(options.lr(), 0.125);
    options.momentum(0.9);
    loss_of(*model, batch_of(0)).backward();
    EXPECT_THROW(optimizer.step(), BadInput);
  });
}

TEST(Habits, CollectivesTakeTensors) {
  for (const std::string& engine : cpu_engines()) {
    in_world(3, engine, [](World& world) {
      auto sum = torch::full({2, 3}, world.rank() + 1.0).t();  // not contiguous
      all_reduce(world, sum);
      EXPECT_TRUE(torch::equal(sum, torch::full({3, 2}, 6.0)));
      auto most = torch::tensor({world.rank()}, torch::kInt64);
      all_reduce(world, most, {.op = ReduceOp::kMax});
      EXPECT_EQ(most.item<int>(), 2);
      auto flags = torch::full({4}, world.rank() == 1, torch::kBool);
      broadcast(world, flags, 1);
      EXPECT_TRUE(flags.all().item<bool>());
      const auto all = all_gather(world, torch::full({2}, world.rank(), torch::kInt16));
      EXPECT_TRUE(torch::equal(all, torch::tensor({{0, 0}, {1, 1}, {2, 2}}, torch::kInt16)));
      EXPECT_THROW(all_reduce(world, flags), BadInput);
      EXPECT_THROW(all_reduce(world, torch::Tensor()), BadInput);
    });
  }
  for (const Outcome& outcome : outcomes_in_world(2, [](World& world) {
         broadcast(world, world.rank() == 0 ? torch::zeros({4}) : torch::zeros({4}, torch::kInt32));
       })) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text, HasSubstr("broadcast(int32 [4])"));
  }
}

TEST(Habits, ABreakOnOneWorkerAloneIsAMismatch) {
  const auto breaks = [](World& world, int first, int others) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    for (int epoch = 0; epoch < 2; ++epoch) {
      int runs = 0;
      for (const int batch : UnevenInputs(std::vector<int>(3 + world.rank()), world)) {
        loss_of(*model, batch_of(batch)).backward();
        if (++runs == (world.leader() ? first : others)) break;
      }
    }
    world.comm().barrier().wait();
  };
  for (const std::string& engine : cpu_engines()) {
    in_world(2, engine, [&](World& world) { breaks(world, 2, 2); });
    const auto alone = [&](World& world) { breaks(world, 2, 9); };
    for (const Outcome& outcome : outcomes_in_world(2, alone, engine)) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << engine;
      EXPECT_THAT(outcome.text, HasSubstr("leaving UnevenInputs")) << engine;
    }
  }
}

TEST(Habits, AWorldOfThreadsIsOneCall) {
  std::atomic<int> sum{0};
  run_threads(3, [&](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    loss_of(*model, batch_of(world.rank())).backward();
    expect_close(gradients(*model), plain_mean(3));
    sum += world.rank();
  });
  EXPECT_EQ(sum, 3);
  try {
    run_threads(3, [](World& world) {
      if (world.rank() == 1) throw std::runtime_error("rank 1's own");
      world.comm().barrier().wait();
    });
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1's own");
  }
  EXPECT_THROW(run_threads(0, [](World&) {}), BadInput);
}

}  // namespace
}  // namespace lockstep::testing::replicas
