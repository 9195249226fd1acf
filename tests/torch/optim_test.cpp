// Optimizers on the flat layout against torch::optim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <cmath>
#include <set>
#include <sstream>

#include "tests/torch/nets.h"
#include "tests/torch/optimizers.h"

namespace lockstep::testing {
namespace {

constexpr std::uint64_t kOptimSeed = 3;
constexpr int kSteps = 30;

torch::Tensor loss_at(TwoLayersImpl& net, int step) {
  const auto data = samples(50 + static_cast<std::uint64_t>(step), {6, 8});
  return net.forward(data.to(net.first->weight.scalar_type())).pow(2).mean();
}

TwoLayers net_of(torch::ScalarType type) {
  auto net = seeded<TwoLayers>(kOptimSeed);
  net->to(type);
  return net;
}

// Trains twice over the same data and compares each tensor. ‖Δ‖/‖w‖ is some tens of roundings at most.
template <typename Ours, typename Stock>
void expect_same_numbers(torch::ScalarType type,
                         const std::function<Ours(Replica&, TwoLayers&)>& ours,
                         const std::function<Stock(TwoLayers&)>& stock) {
  in_world(1, [&](World& world) {
    auto plain = net_of(type);
    auto model = data_parallel(net_of(type), world);
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
      EXPECT_LE(error / w.norm().item<double>(), type == torch::kFloat32 ? 1e-6 : 1e-14)
          << type << ", parameter " << i;
    }
  });
}
template <typename Ours, typename Stock>
void expect_same_numbers(const std::function<Ours(Replica&, TwoLayers&)>& ours,
                         const std::function<Stock(TwoLayers&)>& stock) {
  for (const auto type : {torch::kFloat32, torch::kFloat64})
    expect_same_numbers<Ours, Stock>(type, ours, stock);
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

// beta2 is so small that squares also become smaller.
TEST(Optim, AmsgradHasTorchsNumbers) {
  expect_same<optim::Adam, optim::AdamOptions, torch::optim::Adam>(
      {.lr = 1e-2, .beta2 = 0.5, .weight_decay = 1e-2, .amsgrad = true},
      torch::optim::AdamOptions(1e-2).betas({0.9, 0.5}).weight_decay(1e-2).amsgrad(true));
  expect_same<optim::AdamW, optim::AdamWOptions, torch::optim::AdamW>(
      {.lr = 1e-2, .beta2 = 0.5, .weight_decay = 0.1, .amsgrad = true},
      torch::optim::AdamWOptions(1e-2).betas({0.9, 0.5}).weight_decay(0.1).amsgrad(true));
}

TEST(Optim, RMSpropHasTorchsNumbers) {
  using Stock = torch::optim::RMSpropOptions;
  const std::pair<optim::RMSpropOptions, Stock> cases[] = {
      {{}, Stock()},
      {{.lr = 1e-3, .alpha = 0.9, .eps = 1e-6, .weight_decay = 1e-2},
       Stock(1e-3).alpha(0.9).eps(1e-6).weight_decay(1e-2)},
      {{.lr = 1e-3, .momentum = 0.9}, Stock(1e-3).momentum(0.9)},
      {{.lr = 1e-3, .centered = true}, Stock(1e-3).centered(true)},
      {{.lr = 1e-3, .weight_decay = 1e-2, .momentum = 0.8, .centered = true},
       Stock(1e-3).weight_decay(1e-2).momentum(0.8).centered(true)}};
  for (const auto& [ours, stock] : cases) {
    SCOPED_TRACE(&ours - &cases[0].first);
    expect_same<optim::RMSprop, optim::RMSpropOptions, torch::optim::RMSprop>(ours, stock);
  }
}

TEST(Optim, AdagradHasTorchsNumbers) {
  using Stock = torch::optim::AdagradOptions;
  expect_same<optim::Adagrad, optim::AdagradOptions, torch::optim::Adagrad>({}, Stock());
  expect_same<optim::Adagrad, optim::AdagradOptions, torch::optim::Adagrad>(
      {.lr = 0.05,
       .lr_decay = 0.1,
       .weight_decay = 1e-2,
       .initial_accumulator_value = 0.3,
       .eps = 1e-6},
      Stock(0.05).lr_decay(0.1).weight_decay(1e-2).initial_accumulator_value(0.3).eps(1e-6));
}

// Groups of LibTorch's: weights, and biases.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> stock_groups(TwoLayers& net, const Options& weights,
                                                            const Options& biases) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{net->first->weight, net->second->weight},
                      std::make_unique<Options>(weights));
  groups.emplace_back(std::vector{net->first->bias, net->second->bias},
                      std::make_unique<Options>(biases));
  return groups;
}

TEST(Optim, GroupsMayUseOtherStates) {
  using StockRms = torch::optim::RMSpropOptions;
  expect_same_numbers<optim::RMSprop, torch::optim::RMSprop>(
      [](Replica& model, TwoLayers& net) {
        return optim::RMSprop(model, {.lr = 1e-3, .momentum = 0.9},
                              {{{net->first->bias, net->second->bias}, {.centered = true}}});
      },
      [](TwoLayers& net) {
        return torch::optim::RMSprop(
            stock_groups(net, StockRms(1e-3).momentum(0.9), StockRms(1e-2).centered(true)));
      });
  using StockAdam = torch::optim::AdamOptions;
  expect_same_numbers<optim::Adam, torch::optim::Adam>(
      [](Replica& model, TwoLayers& net) {
        return optim::Adam(
            model, {.lr = 1e-2},
            {{{net->first->bias, net->second->bias}, {.beta2 = 0.5, .amsgrad = true}}});
      },
      [](TwoLayers& net) {
        return torch::optim::Adam(
            stock_groups(net, StockAdam(1e-2), StockAdam(1e-3).betas({0.9, 0.5}).amsgrad(true)));
      });
}

TEST(Optim, AStateThatNobodyUsesHasNoMemory) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    const auto states_of = [](const optim::Optimizer& optimizer) {
      std::set<std::string> names;
      for (const auto& one : optimizer.state())
        names.insert(one.name.substr(0, one.name.find('/')));
      return names;
    };
    using ::testing::ElementsAre, ::testing::IsEmpty;
    EXPECT_THAT(states_of(optim::SGD(model, {})), IsEmpty());
    EXPECT_THAT(states_of(optim::Adam(model)), ElementsAre("mean", "square"));
    EXPECT_THAT(states_of(optim::AdamW(model, {.amsgrad = true})),
                ElementsAre("max_square", "mean", "square"));
    EXPECT_THAT(states_of(optim::RMSprop(model)), ElementsAre("square"));
    EXPECT_THAT(states_of(optim::RMSprop(model, {.momentum = 0.9})),
                ElementsAre("momentum", "square"));
    EXPECT_THAT(states_of(optim::Adagrad(model)), ElementsAre("sum"));
  });
}

TEST(Optim, GroupsHaveTheirOwnOptionsAndKeepTheirRatioOfRates) {
  expect_same_numbers<optim::SGD, torch::optim::SGD>(
      [](Replica& model, TwoLayers& net) {
        return optim::SGD(model, {.lr = 0.2, .momentum = 0.9},
                          {{{net->first->bias, net->second->bias}, {.lr = 0.02}}});
      },
      [](TwoLayers& net) {
        return torch::optim::SGD(stock_groups(net, StockSgd(0.2).momentum(0.9), StockSgd(0.02)),
                                 StockSgd(0.2));
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
    EXPECT_THROW(optim::Adam(model, {.eps = -1e-8}), BadInput);
    EXPECT_THROW(optim::RMSprop(model, {.alpha = 1}), BadInput);
    EXPECT_THROW(optim::RMSprop(model, {.eps = -1e-8}), BadInput);
    EXPECT_THROW(optim::RMSprop(model, {.momentum = -0.1}), BadInput);
    EXPECT_THROW(optim::RMSprop(model, {.weight_decay = std::nan("")}), BadInput);
    EXPECT_THROW(optim::Adagrad(model, {.lr_decay = -1}), BadInput);
    EXPECT_THROW(optim::Adagrad(model, {.initial_accumulator_value = -1}), BadInput);
    EXPECT_THROW(optim::Adagrad(model, {.eps = -1}), BadInput);
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

class EveryOptimizer : public ::testing::TestWithParam<std::string> {
 protected:
  static void train(DataParallel<TwoLayers>& model, optim::Optimizer& optimizer, int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer.zero_grad();
      loss_at(*model, step).backward();
      optimizer.step();
    }
  }
};

TEST_P(EveryOptimizer, StateContinuesToTheSameBits) {
  in_world(1, [](World& world) {
    auto a = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    auto b = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    const auto one = make_optimizer(GetParam(), a);
    const auto two = make_optimizer(GetParam(), b);
    train(a, *one, 0, 10);
    {
      torch::NoGradGuard guard;
      for (std::size_t i = 0; i < a->parameters().size(); ++i)
        b->parameters()[i].copy_(a->parameters()[i]);
    }
    std::stringstream file;
    torch::save(*one, file);
    torch::load(*two, file);
    std::vector<NamedTensor> saved;
    for (const auto& [name, tensor] : one->state()) saved.push_back({name, tensor.clone()});
    train(a, *one, 10, 20);
    train(b, *two, 10, 20);
    for (std::size_t i = 0; i < a->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(a->parameters()[i], b->parameters()[i]));
    saved.pop_back();
    EXPECT_THROW(two->load_state(saved, 1), Mismatch);
  });
}

// Each has what the other lacks.
TEST(Optim, AnArchiveWithOtherStatesIsRefused) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    optim::Adam plain(model);
    optim::Adam amsgrad(model, {.amsgrad = true});
    for (const auto& [from, into] :
         {std::pair<optim::Adam*, optim::Adam*>{&plain, &amsgrad}, {&amsgrad, &plain}}) {
      std::stringstream file;
      torch::save(*from, file);
      EXPECT_THROW(torch::load(*into, file), Mismatch);
    }
  });
}

TEST_P(EveryOptimizer, FollowsASchedulerOfLibTorchs) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kOptimSeed), world);
    const auto optimizer = make_optimizer(GetParam(), model);
    const auto stock = make_stock_optimizer(GetParam(), {torch::zeros(1)});
    const double rate = optimizer->lr();
    torch::optim::StepLR scheduler(*optimizer, 1, 0.5);
    torch::optim::StepLR reference(*stock, 1, 0.5);
    for (int step = 0; step < 4; ++step) {
      train(model, *optimizer, step, step + 1);
      scheduler.step();
      reference.step();
      EXPECT_EQ(optimizer->lr(), stock->param_groups()[0].options().get_lr());
    }
    EXPECT_LT(optimizer->lr(), rate);
    EXPECT_EQ(optimizer->steps(), 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Optim, EveryOptimizer, ::testing::ValuesIn(all_optimizer_names()));

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
