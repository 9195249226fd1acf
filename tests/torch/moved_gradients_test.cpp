// A program may do with a gradient what it may do with any tensor. lockstep::optim then takes the step that
// torch::optim takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <utility>

#include "tests/torch/nets.h"
#include "tests/torch/replica_cases.h"

namespace lockstep::testing::moved_gradients {
namespace {

using ::testing::HasSubstr;
using Parameters = std::vector<torch::Tensor>;

constexpr int kWorkers = 2;
constexpr int kSteps = 4;

// Both layers are square and of one size: their gradients can be transposed and swapped.
TwoLayers square_net() {
  return seeded<TwoLayers>(7, 6, 6, 6);
}

torch::Tensor loss_of(TwoLayersImpl& net, int step, int rank) {
  return net.forward(samples(static_cast<std::uint64_t>(100 * step + rank), {5, 6})).pow(2).mean();
}

// What a program does with gradients between backward() and step(). Parameters: weight and bias of the first layer, then
// of the second.
struct Program {
  std::string name;
  std::function<void(Parameters&)> change;
  bool erases = false;
};

std::vector<Program> programs() {
  return {
      {"gives a gradient other memory",
       [](Parameters& all) { all[0].grad().set_data(all[0].grad() * 0.5); }},
      {"sets its storage", [](Parameters& all) { all[2].grad().set_(all[2].grad() * 0.5); }},
      {"swaps two",
       [](Parameters& all) { std::swap(all[0].mutable_grad(), all[2].mutable_grad()); }},
      {"swaps the memory of two",
       [](Parameters& all) {
         const torch::Tensor first = all[0].grad().detach();
         all[0].grad().set_data(all[2].grad().detach());
         all[2].grad().set_data(first);
       }},
      {"transposes one", [](Parameters& all) { all[0].mutable_grad() = all[0].grad().t(); }},
      {"reverses one in place of itself",
       [](Parameters& all) { all[1].mutable_grad() = all[1].grad().flip(0); }},
      {"gives two parameters one gradient",
       [](Parameters& all) { all[2].mutable_grad() = all[0].grad(); }},
      {"erases one", [](Parameters& all) { all[3].mutable_grad() = torch::Tensor(); }, true},
      {"erases all",
       [](Parameters& all) {
         for (auto& one : all) one.mutable_grad() = torch::Tensor();
       },
       true},
      {"erases one and swaps others",
       [](Parameters& all) {
         all[1].mutable_grad() = torch::Tensor();
         std::swap(all[0].mutable_grad(), all[2].mutable_grad());
       },
       true},
  };
}

// Erased gradients count from the second step: momentum then moves what a gradient of zero would not leave alone.
bool acts(const Program& program, int step) {
  return !program.erases || step % 2 == 1;
}

Parameters by_torch(const Program& program) {
  auto net = square_net();
  Parameters all = net->parameters();
  torch::optim::SGD optimizer(all, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  for (int step = 0; step < kSteps; ++step) {
    for (auto& one : all) one.mutable_grad() = torch::Tensor();
    ((loss_of(*net, step, 0) + loss_of(*net, step, 1)) / kWorkers).backward();
    if (acts(program, step)) program.change(all);
    optimizer.step();
  }
  return all;
}

Parameters by_lockstep(const Program& program, const std::string& engine) {
  Parameters found;
  in_world(kWorkers, engine, [&](World& world) {
    auto net = square_net();
    auto model = data_parallel(
        net, world,
        {.missing_gradient = program.erases ? MissingGradient::kZero : MissingGradient::kError});
    optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    Parameters all = net->parameters();
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of(*net, step, world.rank()).backward();
      if (acts(program, step)) program.change(all);
      optimizer.step();
    }
    EXPECT_TRUE(model.identical()) << program.name;
    if (!world.leader()) return;
    for (const auto& one : all) found.push_back(one.detach().clone());
  });
  return found;
}

TEST(MovedGradients, AreWhatTheOptimizerUses) {
  for (const Program& program : programs()) {
    const Parameters expected = by_torch(program);
    for (const std::string engine : {"thread", "shm"}) {
      const Parameters found = by_lockstep(program, engine);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(found[i].allclose(expected[i], 1e-5, 1e-7))
            << program.name << ", " << engine << ", parameter " << i;
    }
  }
}

// Backward adds to the gradients where the program left them.
TEST(MovedGradients, ArePartOfTheSumThatBackwardAddsTo) {
  in_world(kWorkers, "thread", [](World& world) {
    auto net = square_net();
    auto model = data_parallel(net, world);
    auto plain = square_net();
    const auto pass = [&](int step) {
      loss_of(*net, step, world.rank()).backward();
      ((loss_of(*plain, step, 0) + loss_of(*plain, step, 1)) / kWorkers).backward();
    };
    pass(0);
    for (auto* one : {&*net, &*plain}) {
      std::swap(one->first->weight.mutable_grad(), one->second->weight.mutable_grad());
      one->first->bias.grad().set_data(one->first->bias.grad() * 3);
      one->second->bias.mutable_grad() = one->second->bias.grad().flip(0);
    }
    pass(1);
    replicas::expect_close(replicas::gradients(*net), replicas::gradients(*plain));
  });
}

TEST(MovedGradients, AStepWithoutGradientsIsRefusedWhereEveryParameterMustHaveOne) {
  const auto outcomes = outcomes_in_world(kWorkers, [](World& world) {
    auto net = square_net();
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
    loss_of(*net, 0, world.rank()).backward();
    optimizer.step();
    optimizer.zero_grad();
    optimizer.step();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    EXPECT_THAT(outcome.text, HasSubstr("is undefined: run backward()"));
    EXPECT_THAT(outcome.text, HasSubstr("MissingGradient::kZero"));
  }
}

TEST(MovedGradients, AGradientThatOneWorkerErasedIsAMismatch) {
  const auto outcomes = outcomes_in_world(kWorkers, [](World& world) {
    auto net = square_net();
    auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
    optim::SGD optimizer(model, {.lr = 0.1});
    loss_of(*net, 0, world.rank()).backward();
    if (world.rank() == 1) net->first->bias.mutable_grad() = torch::Tensor();
    optimizer.step();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text, HasSubstr("gradients"));
  }
}

TEST(MovedGradients, OneOfAnotherShapeIsRefused) {
  const auto outcomes = outcomes_in_world(1, [](World& world) {
    auto net = square_net();
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.1});
    loss_of(*net, 0, world.rank()).backward();
    net->first->bias.grad().set_data(torch::ones({1}));
    optimizer.step();
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kBadInput);
  EXPECT_THAT(outcomes[0].text, HasSubstr("the gradient of first.bias is float32 [1]"));
}

}  // namespace
}  // namespace lockstep::testing::moved_gradients
