// Where workers share memory, averages and weights exist once per host. A program does not notice: whatever it writes to
// gradients or parameters, it gets the bits that it gets where each worker has memory of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/checkpoint.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <optional>

#include "tests/torch/folder.h"
#include "tests/torch/nets.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing::one_copy {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 3;
constexpr int kSteps = 6;

// Some 80 pages, and its entries do not begin at pages.
TwoLayers net_of_pages() {
  return seeded<TwoLayers>(5, 41, 1031, 37);
}

torch::Tensor loss_of(TwoLayersImpl& net, int step, int rank) {
  const auto seed = static_cast<std::uint64_t>(100 * step + rank);
  return net.forward(samples(seed, {5, 41})).pow(2).mean();
}

torch::Tensor loss_of_small(TwoLayersImpl& net, int rank) {
  return net.forward(samples(static_cast<std::uint64_t>(rank), {4, 8})).pow(2).mean();
}

// What a program does in one step of its own loop.
struct Program {
  std::string name;
  std::function<void(TwoLayersImpl&, optim::Optimizer&, int step, int rank)> step;
  MissingGradient missing = MissingGradient::kError;
};

void train(TwoLayersImpl& net, optim::Optimizer& optimizer, int step, int rank) {
  optimizer.zero_grad();
  loss_of(net, step, rank).backward();
  optimizer.step();
}

std::vector<Program> writers_of_gradients() {
  const auto backward = [](TwoLayersImpl& net, optim::Optimizer& optimizer, int step, int rank) {
    optimizer.zero_grad();
    loss_of(net, step, rank).backward();
  };
  std::vector<Program> all;
  all.push_back({"nothing else", train});
  all.push_back({"clips with LibTorch", [=](auto& net, auto& optimizer, int step, int rank) {
                   backward(net, optimizer, step, rank);
                   torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
                   optimizer.step();
                 }});
  all.push_back(
      {"clips one gradient by value", [=](auto& net, auto& optimizer, int step, int rank) {
         backward(net, optimizer, step, rank);
         net.second->bias.grad().clamp_(-1e-3, 1e-3);
         optimizer.step();
       }});
  all.push_back({"clears with zeros", [](auto& net, auto& optimizer, int step, int rank) {
                   for (auto& one : net.parameters())
                     if (one.grad().defined()) one.grad().zero_();
                   loss_of(net, step, rank).backward();
                   optimizer.step();
                 }});
  all.push_back({"adds to averages", [=](auto& net, auto& optimizer, int step, int rank) {
                   backward(net, optimizer, step, rank);
                   loss_of(net, step + 50, rank).backward();
                   optimizer.step();
                 }});
  all.push_back({"replaces gradients",
                 [=](auto& net, auto& optimizer, int step, int rank) {
                   backward(net, optimizer, step, rank);
                   auto weight = net.first->weight;
                   weight.mutable_grad() = weight.grad() * 0.5;
                   net.second->bias.mutable_grad() = torch::Tensor();
                   optimizer.step();
                 },
                 MissingGradient::kZero});
  return all;
}

std::vector<Program> writers_of_weights() {
  std::vector<Program> all;
  all.push_back({"limits all weights", [](auto& net, auto& optimizer, int step, int rank) {
                   train(net, optimizer, step, rank);
                   torch::NoGradGuard no_grad;
                   for (auto& one : net.parameters()) one.clamp_(-0.05, 0.05);
                 }});
  all.push_back({"limits a few weights", [](auto& net, auto& optimizer, int step, int rank) {
                   train(net, optimizer, step, rank);
                   net.second->weight.data()[3].mul_(0.5);  // LibTorch counts no version here
                 }});
  all.push_back({"writes once to everything", [](auto& net, auto& optimizer, int step, int rank) {
                   train(net, optimizer, step, rank);
                   if (step == 2)
                     for (auto& one : net.parameters()) one.data().mul_(0.9);
                 }});
  // The unused layer shares a page with used ones. What is written to it stays.
  all.push_back({"leaves a layer out",
                 [=](auto& net, auto& optimizer, int step, int rank) {
                   optimizer.zero_grad();
                   net.first->forward(samples(static_cast<std::uint64_t>(step * 7 + rank), {5, 41}))
                       .pow(2)
                       .mean()
                       .backward();
                   net.second->bias.data().add_(0.25);
                   optimizer.step();
                 },
                 MissingGradient::kZero});
  all.push_back({"leaves a layer out and writes to everything",
                 [=](auto& net, auto& optimizer, int step, int rank) {
                   optimizer.zero_grad();
                   net.first->forward(samples(static_cast<std::uint64_t>(step * 7 + rank), {5, 41}))
                       .pow(2)
                       .mean()
                       .backward();
                   optimizer.step();
                   if (step % 2 == 0)
                     for (auto& one : net.parameters()) one.data().mul_(0.75);
                 },
                 MissingGradient::kZero});
  return all;
}

std::string trained(const std::string& engine, const Program& program) {
  std::string digest;
  in_world(kWorkers, engine, [&](World& world) {
    auto net = net_of_pages();
    auto model = data_parallel(net, world, {.missing_gradient = program.missing});
    optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) program.step(*net, optimizer, step, world.rank());
    EXPECT_TRUE(model.identical()) << program.name;
    const replica::FlatMemory& weights = replica::inside(model).parameters();
    const bool one_copy = &weights != &replica::inside(model).parts().parameters->seen();
    EXPECT_EQ(one_copy, engine == "shm" || engine == kTcpHosts);
    if (world.leader()) digest = replica::digest(model.parameters());
  });
  return digest;
}

TEST(OneCopy, GivesWhateverAProgramWritesTheBitsOfCopies) {
  std::vector<Program> programs = writers_of_gradients();
  const std::vector<Program> more = writers_of_weights();
  programs.insert(programs.end(), more.begin(), more.end());
  for (const Program& program : programs) {
    const std::string expected = trained("thread", program);
    EXPECT_EQ(trained("shm", program), expected) << program.name;
    EXPECT_EQ(trained(kTcpHosts, program), expected) << program.name;
  }
}

// What a program keeps of its parameters and gradients stays theirs, however much it writes.
TEST(OneCopy, WhatAProgramKeepsOfItsTensorsStaysTheirs) {
  for (const std::string engine : {"shm", "thread"}) {
    in_world(2, engine, [](World& world) {
      auto net = net_of_pages();
      auto model = data_parallel(net, world);
      const torch::Tensor weight = net->first->weight.data();
      optim::SGD optimizer(model, {.lr = 0.1});
      torch::Tensor gradient;
      for (int step = 0; step < 8; ++step) {
        if (gradient.defined()) gradient.zero_();
        for (auto& one : net->parameters())
          if (one.grad().defined()) one.grad().zero_();
        loss_of(*net, step, world.rank()).backward();
        if (!gradient.defined()) gradient = net->first->weight.grad();
        EXPECT_EQ(gradient.data_ptr(), net->first->weight.grad().data_ptr()) << step;
        optimizer.step();
        weight.clamp_(-0.02, 0.02);
        EXPECT_EQ(weight.data_ptr(), net->first->weight.data_ptr()) << step;
        EXPECT_LE(net->first->weight.abs().max().item<float>(), 0.02F) << step;
      }
    });
  }
}

// Hosts of two workers and of one.
TEST(OneCopy, IsOneOfEachHost) {
  in_world(3, kTcpHosts, [&](World& world) {
    auto net = seeded<TwoLayers>(5);
    auto model = data_parallel(net, world);
    optim::AdamW optimizer(model, {.lr = 0.1});
    const replica::FlatMemory& weights = replica::inside(model).parameters();
    const std::byte before = weights.data()[5];
    world.comm().barrier().wait();
    if (world.rank() == 1) weights.data()[5] = std::byte{77};
    world.comm().barrier().wait();
    EXPECT_EQ(weights.data()[5], world.rank() < 2 ? std::byte{77} : before);
    EXPECT_EQ(replica::inside(model).parts().host().size(), world.rank() < 2 ? 2 : 1);
  });
}

TEST(OneCopy, WhatAWorkerWritesNobodyElseSees) {
  for (const bool optimized : {false, true}) {
    in_world(2, "shm", [&](World& world) {
      auto net = seeded<TwoLayers>(5);
      auto model = data_parallel(net, world);
      std::optional<optim::SGD> optimizer;
      if (optimized) optimizer.emplace(model, optim::SGDOptions{.lr = 0.1});
      loss_of_small(*net, world.rank()).backward();
      const float weight = net->first->bias[0].item<float>();
      const float average = net->first->bias.grad()[0].item<float>();
      world.comm().barrier().wait();
      torch::NoGradGuard no_grad;
      if (world.leader()) net->first->bias[0] = net->first->bias.grad()[0] = 77;
      world.comm().barrier().wait();
      EXPECT_EQ(net->first->bias[0].item<float>(), world.leader() ? 77 : weight);
      EXPECT_EQ(net->first->bias.grad()[0].item<float>(), world.leader() ? 77 : average);
    });
  }
}

// Before the optimizer there are copies, which may differ; that must not get lost.
TEST(OneCopy, AWorkerThatLoadedOtherWeightsBeforeTheOptimizerIsFound) {
  const auto outcomes = outcomes_in_world(
      2,
      [](World& world) {
        auto net = seeded<TwoLayers>(5);
        auto model = data_parallel(net, world);
        if (world.rank() == 1) {
          torch::NoGradGuard no_grad;
          for (auto& one : net->parameters()) one.add_(1);
        }
        optim::SGD optimizer(model, {.lr = 0.1});
        loss_of_small(*net, world.rank()).backward();
      },
      "shm");
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text, HasSubstr("weights"));
  }
}

TEST(OneCopy, AWorkerThatWritesOtherWeightsThanTheOthersIsFound) {
  for (const std::string engine : {"shm", kTcpHosts}) {
    const auto outcomes = outcomes_in_world(
        3,
        [](World& world) {
          auto net = seeded<TwoLayers>(5);
          auto model = data_parallel(net, world);
          optim::SGD optimizer(model, {.lr = 0.1});
          loss_of_small(*net, world.rank()).backward();
          if (world.rank() == 1) net->first->weight.data()[3][2] += 1e-3;
          optimizer.step();
        },
        engine);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
      EXPECT_THAT(outcome.text, HasSubstr("wrote other values to the parameters"));
    }
  }
}

TEST(OneCopy, LoadedWeightsAreSharedAgain) {
  const Folder folder;
  const std::string file = folder.path() + "/weights.safetensors";
  for (const std::string engine : {"shm", kTcpHosts})
    in_world(3, engine, [&](World& world) {
      auto net = net_of_pages();
      auto model = data_parallel(net, world);
      optim::SGD optimizer(model, {.lr = 0.1});
      save(model, file);
      const std::string before = replica::digest(model.parameters());
      for (int step = 0; step < 2; ++step) train(*net, optimizer, step, world.rank());
      EXPECT_NE(replica::digest(model.parameters()), before);
      load(model, file);
      EXPECT_EQ(replica::digest(model.parameters()), before);
      EXPECT_EQ(replica::inside(model).parts().parameters->look(), 0U);
    });
}

}  // namespace
}  // namespace lockstep::testing::one_copy
