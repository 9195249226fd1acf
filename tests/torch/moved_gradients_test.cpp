// A program may do with a gradient what it may do with any tensor. lockstep::optim then takes the step that
// torch::optim takes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <limits>
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
  MissingGradient missing = MissingGradient::kError;
  double clip = 0;
};

std::vector<Program> movers() {
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
      {"replaces one by its transpose",
       [](Parameters& all) { all[0].mutable_grad() = all[0].grad().t(); }},
      {"transposes one", [](Parameters& all) { all[0].grad().t_(); }},
      {"gives one the memory of its transpose",
       [](Parameters& all) { all[2].grad().set_data(all[2].grad().t()); }},
      {"replaces one by another tensor",
       [](Parameters& all) { all[1].mutable_grad() = all[1].grad().flip(0); }},
  };
}

// Momentum and weight decay would move a parameter whose gradient is zero.
std::vector<Program> erasers() {
  std::vector<Program> made{
      {"erases one", [](Parameters& all) { all[3].mutable_grad() = torch::Tensor(); }},
      {"erases all",
       [](Parameters& all) {
         for (auto& one : all) one.mutable_grad() = torch::Tensor();
       }},
      {"moves one to another parameter",
       [](Parameters& all) {
         all[2].mutable_grad() = all[0].grad();
         all[0].mutable_grad() = torch::Tensor();
       }},
      {"erases one that is not finite, and swaps others",
       [](Parameters& all) {
         all[1].grad().fill_(std::numeric_limits<float>::quiet_NaN());
         all[1].mutable_grad() = torch::Tensor();
         std::swap(all[0].mutable_grad(), all[2].mutable_grad());
       }},
  };
  for (Program& program : made) program.missing = MissingGradient::kZero;
  made.push_back(made.front());
  made.back().missing = MissingGradient::kStatic;
  return made;
}

std::vector<Program> programs() {
  std::vector<Program> made;
  for (const double clip : {0.0, 0.05}) {
    for (const auto& kind : {movers(), erasers()}) {
      for (Program program : kind) {
        program.clip = clip;
        made.push_back(std::move(program));
      }
    }
  }
  // clip_grad_norm_() would multiply it twice.
  made.push_back({"gives two parameters one gradient",
                  [](Parameters& all) { all[2].mutable_grad() = all[0].grad(); }});
  return made;
}

Parameters by_torch(const Program& program) {
  auto net = square_net();
  Parameters all = net->parameters();
  torch::optim::SGD optimizer(all, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  for (int step = 0; step < kSteps; ++step) {
    for (auto& one : all) one.mutable_grad() = torch::Tensor();
    ((loss_of(*net, step, 0) + loss_of(*net, step, 1)) / kWorkers).backward();
    if (step % 2 == 1) program.change(all);
    if (program.clip > 0) torch::nn::utils::clip_grad_norm_(all, program.clip);
    optimizer.step();
  }
  return all;
}

Parameters by_lockstep(const Program& program, const std::string& engine) {
  Parameters found;
  in_world(kWorkers, engine, [&](World& world) {
    auto net = square_net();
    auto model = data_parallel(net, world, {.missing_gradient = program.missing});
    optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    optimizer.set_clip_norm(program.clip);
    Parameters all = net->parameters();
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of(*net, step, world.rank()).backward();
      if (step % 2 == 1) program.change(all);
      optimizer.step();
    }
    EXPECT_TRUE(model.identical()) << program.name;
    if (!world.leader()) return;
    for (const auto& one : all) found.push_back(one.detach().clone());
  });
  return found;
}

void expect_equal(const Parameters& found, const Parameters& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].allclose(expected[i], 1e-5, 1e-7)) << what << ", parameter " << i;
}

TEST(MovedGradients, AreWhatTheOptimizerUses) {
  for (const Program& program : programs()) {
    const Parameters expected = by_torch(program);
    for (const std::string engine : {"thread", "shm"})
      expect_equal(by_lockstep(program, engine), expected,
                   fmt::format("{}, {}, clipped at {}", program.name, engine, program.clip));
  }
}

TEST(MovedGradients, AnErasedOneHasNoNorm) {
  for (const std::string engine : {"thread", "shm"}) {
    for (const double clip : {0.0, 0.05}) {
      in_world(kWorkers, engine, [&](World& world) {
        auto net = square_net();
        auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
        optim::SGD optimizer(model, {.lr = 0.1});
        optimizer.set_clip_norm(clip);
        optimizer.keep_norms();
        loss_of(*net, 0, world.rank()).backward();
        net->first->weight.mutable_grad() = torch::Tensor();
        optimizer.step();
        const auto norms = optimizer.last_norms();
        ASSERT_EQ(norms.size(), 4u);
        EXPECT_EQ(norms[0].norm, 0) << norms[0].name;
        EXPECT_GT(norms[2].norm, 0) << norms[2].name;
      });
    }
  }
}

// No worker reaches the second layer.
TEST(MovedGradients, AGradientThatTheProgramGivesToAnUnusedParameterCounts) {
  for (const std::string engine : {"thread", "shm"}) {
    in_world(kWorkers, engine, [](World& world) {
      auto net = square_net();
      auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
      optim::SGD optimizer(model, {.lr = 0.1});
      const torch::Tensor bias = net->second->bias.detach().clone();
      const torch::Tensor weight = net->second->weight.detach().clone();
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        net->first->forward(samples(3, {5, 6})).pow(2).mean().backward();
        EXPECT_FALSE(net->second->bias.grad().defined());
        if (step == 1) net->second->bias.mutable_grad() = torch::ones_like(bias);
        optimizer.step();
      }
      EXPECT_TRUE(net->second->bias.allclose(bias - 0.1));
      EXPECT_TRUE(torch::equal(net->second->weight, weight));
    });
  }
}

TEST(MovedGradients, KeepTheMemoryFormatOfTheirParameter) {
  const auto train = [](torch::nn::Conv2d& conv, const std::function<void()>& backward,
                        const std::function<void()>& step) {
    for (int i = 0; i < 3; ++i) {
      conv->weight.mutable_grad() = torch::Tensor();
      backward();
      if (i == 0) conv->weight.mutable_grad() = conv->weight.grad().contiguous();
      if (i == 1) conv->weight.grad().set_data(conv->weight.grad() * 2);
      step();
    }
  };
  const auto make = [] {
    torch::manual_seed(5);
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3).bias(false));
    conv->weight.set_data(conv->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
    return conv;
  };
  const torch::Tensor x = samples(9, {2, 3, 6, 6});
  auto plain = make();
  torch::optim::SGD stock(plain->parameters(), 0.1);
  train(
      plain, [&] { plain->forward(x).pow(2).mean().backward(); }, [&] { stock.step(); });
  for (const std::string engine : {"thread", "shm"}) {
    std::vector<torch::nn::Conv2d> nets;
    for (int rank = 0; rank < kWorkers; ++rank) nets.push_back(make());
    in_world(kWorkers, engine, [&](World& world) {
      auto conv = nets[static_cast<std::size_t>(world.rank())];
      auto model = data_parallel(conv, world);
      optim::SGD optimizer(model, {.lr = 0.1});
      train(
          conv, [&] { conv->forward(x).pow(2).mean().backward(); }, [&] { optimizer.step(); });
      EXPECT_TRUE(conv->weight.allclose(plain->weight, 1e-5, 1e-7)) << engine;
    });
  }
}

// Backward adds to the gradients where the program left them.
TEST(MovedGradients, ArePartOfTheSumThatBackwardAddsTo) {
  const auto run = [](World& world) {
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
  };
  for (const std::string engine : {"thread", "shm"}) in_world(kWorkers, engine, run);
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
  EXPECT_THAT(outcomes[0].text,
              HasSubstr("the gradient of first.bias is float32 [1], and in data_parallel()"));
}

}  // namespace
}  // namespace lockstep::testing::moved_gradients
