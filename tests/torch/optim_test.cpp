// Optimizers on the flat layout against torch::optim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include "tests/torch/nets.h"

namespace lockstep::testing {
namespace {

constexpr std::uint64_t kOptimSeed = 3;
constexpr int kSteps = 30;

torch::Tensor loss_at(TwoLayersImpl& net, int step) {
  return net.forward(samples(50 + static_cast<std::uint64_t>(step), {6, 8})).pow(2).mean();
}

// Trains twice over the same data and compares each tensor: ‖Δ‖/‖w‖ at most 1e-6.
template <typename Ours, typename Stock>
void expect_same_numbers(const std::function<Ours(Replica&, TwoLayers&)>& ours,
                         const std::function<Stock(TwoLayers&)>& stock) {
  in_world(1, [&](World& world) {
    auto plain = seeded<TwoLayers>(kOptimSeed);
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    auto reference = stock(plain);
    auto optimizer = ours(model, model.module());
    for (int step = 0; step < kSteps; ++step) {
      plain->zero_grad(false);
      loss_at(*plain, step).backward();
      reference.step();
      optimizer.zero_grad();
      loss_at(*model, step).backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.steps(), kSteps);
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      const auto w = plain->parameters()[i].detach();
      const double error = (model->parameters()[i].detach() - w).norm().item<double>();
      EXPECT_LE(error / w.norm().item<double>(), 1e-6) << "parameter " << i;
    }
  });
}

template <typename Ours, typename Options, typename Stock, typename StockOptions>
void expect_same(const Options& options, const StockOptions& stock_options) {
  expect_same_numbers<Ours, Stock>(
      [&](Replica& model, TwoLayers&) -> Ours { return Ours(model, options); },
      [&](TwoLayers& plain) { return Stock(plain->parameters(), stock_options); });
}

using StockSgd = torch::optim::SGDOptions;

TEST(Optim, SgdHasTorchsNumbers) {
  expect_same<optim::SGD, optim::SGDOptions, torch::optim::SGD>({.lr = 0.1}, StockSgd(0.1));
}
TEST(Optim, MomentumHasTorchsNumbers) {
  expect_same<optim::SGD, optim::SGDOptions, torch::optim::SGD>(
      {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-2},
      StockSgd(0.05).momentum(0.9).weight_decay(1e-2));
}
TEST(Optim, DampeningHasTorchsNumbers) {
  expect_same<optim::SGD, optim::SGDOptions, torch::optim::SGD>(
      {.lr = 0.05, .momentum = 0.8, .dampening = 0.3}, StockSgd(0.05).momentum(0.8).dampening(0.3));
}
TEST(Optim, NesterovHasTorchsNumbers) {
  expect_same<optim::SGD, optim::SGDOptions, torch::optim::SGD>(
      {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true},
      StockSgd(0.05).momentum(0.9).weight_decay(1e-3).nesterov(true));
}
TEST(Optim, AdamHasTorchsNumbers) {
  expect_same<optim::Adam, optim::AdamOptions, torch::optim::Adam>(
      {.lr = 1e-2, .weight_decay = 1e-2}, torch::optim::AdamOptions(1e-2).weight_decay(1e-2));
}
TEST(Optim, AdamWHasTorchsNumbers) {
  expect_same<optim::AdamW, optim::AdamWOptions, torch::optim::AdamW>(
      {.lr = 1e-2, .weight_decay = 0.1}, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

TEST(Optim, GroupsHaveTheirOwnOptionsAndKeepTheirRatioOfRates) {
  expect_same_numbers<optim::SGD, torch::optim::SGD>(
      [](Replica& model, TwoLayers& net) {
        return optim::SGD(model, {.lr = 0.2, .momentum = 0.9},
                          {{{net->first->bias, net->second->bias}, {.lr = 0.02}}});
      },
      [](TwoLayers& net) {
        using torch::optim::OptimizerParamGroup;
        std::vector<OptimizerParamGroup> groups;
        groups.emplace_back(std::vector{net->first->weight, net->second->weight},
                            std::make_unique<StockSgd>(StockSgd(0.2).momentum(0.9)));
        groups.emplace_back(std::vector{net->first->bias, net->second->bias},
                            std::make_unique<StockSgd>(StockSgd(0.02)));
        return torch::optim::SGD(groups, StockSgd(0.2));
      });
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    optim::SGD optimizer(model, {.lr = 0.2}, {{{model->first->bias}, {.lr = 0.02}}});
    optimizer.set_lr(0);
    optimizer.set_lr(0.4);
    EXPECT_DOUBLE_EQ(optimizer.lr(), 0.4);
    const auto weight = model->first->weight.detach().clone();
    const auto bias = model->first->bias.detach().clone();
    loss_at(*model, 0).backward();
    optimizer.step();
    EXPECT_LT(largest_difference(model->first->weight, weight - 0.4 * model->first->weight.grad()),
              1e-7);
    EXPECT_LT(largest_difference(model->first->bias, bias - 0.04 * model->first->bias.grad()),
              1e-7);
  });
}

TEST(Optim, OptionsOutOfRangeAndStrangeParametersAreRefused) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    EXPECT_THROW(optim::SGD(model, {.lr = -1}), BadInput);
    EXPECT_THROW(optim::SGD(model, {.lr = 0.1, .nesterov = true}), BadInput);
    EXPECT_THROW(optim::AdamW(model, {.beta1 = 1}), BadInput);
    EXPECT_THROW(optim::SGD(model, {}, {{{torch::zeros(2)}, {}}}), BadInput);
    EXPECT_THROW(optim::SGD(model, {}, {{{model->first->bias}, {}}, {{model->first->bias}, {}}}),
                 BadInput);
  });
}

TEST(Optim, AStepAfterTheModuleWasConvertedIsRefused) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    model->to(torch::kFloat64);
    EXPECT_THROW(optimizer.step(), BadInput);
  });
}

TEST(Optim, AGraphThatSavedAParameterFindsOutAboutTheStep) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    const auto old = loss_at(*model, 0);
    loss_at(*model, 0).backward();
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_THROW(old.backward(), c10::Error);  // as after torch::optim
  });
}

TEST(Optim, StateContinuesToTheSameBits) {
  in_world(1, [](World& world) {
    auto a = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    auto b = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    optim::AdamW one(a, {.lr = 1e-2});
    optim::AdamW two(b, {.lr = 1e-2});
    const auto train = [](auto& model, auto& optimizer, int from, int to) {
      for (int step = from; step < to; ++step) {
        optimizer.zero_grad();
        loss_at(*model, step).backward();
        optimizer.step();
      }
    };
    train(a, one, 0, 10);
    {
      torch::NoGradGuard guard;
      for (std::size_t i = 0; i < a->parameters().size(); ++i)
        b->parameters()[i].copy_(a->parameters()[i]);
    }
    std::vector<NamedTensor> saved;
    for (const auto& [name, tensor] : one.state()) saved.push_back({name, tensor.clone()});
    two.load_state(saved, one.steps());
    train(a, one, 10, 20);
    train(b, two, 10, 20);
    for (std::size_t i = 0; i < a->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(a->parameters()[i], b->parameters()[i]));
    saved.pop_back();
    EXPECT_THROW(two.load_state(saved, 1), Mismatch);
  });
}

TEST(Optim, HalfAndDoubleParametersTrain) {
  in_world(1, [](World& world) {
    for (const auto type : {torch::kFloat64, torch::kBFloat16}) {
      auto net = seeded<TwoLayers>(kOptimSeed);
      net->to(type);
      auto model = data_parallel(net, world);
      optim::AdamW optimizer(model, {.lr = 1e-2});
      double first = 0;
      double last = 0;
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const auto loss = net->forward(samples(1, {6, 8}).to(type)).pow(2).mean();
        loss.backward();
        optimizer.step();
        (step == 0 ? first : last) = loss.item<double>();
      }
      EXPECT_LT(last, first / 2);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
