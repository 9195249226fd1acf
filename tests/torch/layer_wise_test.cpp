// What comes with an update: LARS and LAMB, an average of weights, clipping and norms. Numbers against plain LibTorch, and
// one result on every number of workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/optim.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "tests/torch/folder.h"
#include "tests/torch/loops.h"
#include "tests/torch/nets.h"
#include "tests/torch/optimizers.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing::layer_wise {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 3;
constexpr int kSteps = 20;

// Parameters of several blocks, and of a part of one.
TwoLayers net_of(torch::ScalarType type) {
  auto net = seeded<TwoLayers>(kSeed, 40, 90, 30);
  net->to(type);
  return net;
}

torch::Tensor loss_at(TwoLayersImpl& net, int step) {
  const auto data = samples(50 + static_cast<std::uint64_t>(step), {6, 40});
  return net.forward(data.to(net.first->weight.scalar_type())).pow(2).mean();
}

// One parameter of a reference, and its state.
struct Slot {
  torch::Tensor p, g, first, second;
};
using Rule = std::function<void(Slot&, int step)>;

double norm_of(const torch::Tensor& tensor) {
  return tensor.to(torch::kFloat64).norm().item<double>();
}

// You et al. 2017, word for word.
Rule lars(const optim::LARSOptions& of) {
  return [of](Slot& s, int step) {
    double trust = 1;
    const double w = norm_of(s.p);
    const double g = norm_of(s.g);
    if ((s.p.dim() > 1 || of.adapt_vectors) && w > 0 && g > 0)
      trust = of.trust_coefficient * w / (g + of.weight_decay * w + of.eps);
    const auto d = trust * (s.g + of.weight_decay * s.p);
    s.first = step == 1 ? d : of.momentum * s.first + (1 - of.dampening) * d;
    s.p.sub_(of.lr * (of.nesterov ? d + of.momentum * s.first : s.first));
  };
}

// You et al. 2020, algorithm 2.
Rule lamb(const optim::LAMBOptions& of) {
  return [of](Slot& s, int step) {
    if (step == 1) s.first = s.second = torch::zeros_like(s.p);
    s.first = of.beta1 * s.first + (1 - of.beta1) * s.g;
    s.second = of.beta2 * s.second + (1 - of.beta2) * s.g * s.g;
    const auto mean = s.first / (1 - std::pow(of.beta1, step));
    const auto square = s.second / (1 - std::pow(of.beta2, step));
    const auto u = mean / (square.sqrt() + of.eps) + of.weight_decay * s.p;
    double trust = 1;
    const double w = norm_of(s.p);
    if ((s.p.dim() > 1 || of.adapt_vectors) && w > 0 && norm_of(u) > 0) trust = w / norm_of(u);
    s.p.sub_(of.lr * trust * u);
  };
}

// Trains twice over the same data and compares each parameter. ‖Δ‖/‖w‖ is some tens of roundings at most.
void expect_numbers(
    const std::function<std::unique_ptr<optim::Optimizer>(Replica&)>& ours, const Rule& reference,
    const std::function<void(TwoLayers&)>& clip = [](TwoLayers&) {}) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    in_world(1, [&](World& world) {
      auto plain = net_of(type);
      auto model = data_parallel(net_of(type), world);
      const auto optimizer = ours(model);
      std::vector<Slot> slots(plain->parameters().size());
      for (int step = 1; step <= kSteps; ++step) {
        plain->zero_grad(false);
        loss_at(*plain, step).backward();
        clip(plain);
        torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < slots.size(); ++i) {
          slots[i].p = plain->parameters()[i].detach();
          slots[i].g = plain->parameters()[i].grad();
          reference(slots[i], step);
        }
        const torch::AutoGradMode with_grad(true);
        optimizer->zero_grad();
        loss_at(*model, step).backward();
        optimizer->step();
      }
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const double error = norm_of(model->parameters()[i].detach() - slots[i].p);
        EXPECT_LE(error / norm_of(slots[i].p), type == torch::kFloat32 ? 3e-6 : 3e-14)
            << type << ", parameter " << i;
      }
    });
  }
}

template <typename Ours, typename Options>
std::function<std::unique_ptr<optim::Optimizer>(Replica&)> maker(const Options& options,
                                                                 double clip_norm = 0) {
  return [=](Replica& model) {
    auto optimizer = std::make_unique<Ours>(model, options);
    optimizer->set_clip_norm(clip_norm);
    return optimizer;
  };
}

TEST(LayerWise, LarsHasTheNumbersOfItsPaper) {
  for (const optim::LARSOptions& of :
       {optim::LARSOptions{.lr = 2, .weight_decay = 1e-2, .trust_coefficient = 0.01},
        optim::LARSOptions{.lr = 2, .nesterov = true, .adapt_vectors = true},
        optim::LARSOptions{.lr = 2, .momentum = 0, .weight_decay = 0.1, .eps = 1e-3}})
    expect_numbers(maker<optim::LARS>(of), lars(of));
}

TEST(LayerWise, LambHasTheNumbersOfItsPaper) {
  for (const optim::LAMBOptions& of :
       {optim::LAMBOptions{.lr = 0.01}, optim::LAMBOptions{.lr = 0.01, .weight_decay = 0},
        optim::LAMBOptions{.lr = 0.01, .beta2 = 0.9, .weight_decay = 0.1, .adapt_vectors = true}})
    expect_numbers(maker<optim::LAMB>(of), lamb(of));
}

TEST(LayerWise, NormsAreTakenOfClippedGradients) {
  const auto clip = [](TwoLayers& net) {
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.01);
  };
  const optim::LARSOptions of_lars{.lr = 2, .weight_decay = 0.1};
  const optim::LAMBOptions of_lamb{.lr = 0.01, .eps = 1e-3};
  expect_numbers(maker<optim::LARS>(of_lars, 0.01), lars(of_lars), clip);
  expect_numbers(maker<optim::LAMB>(of_lamb, 0.01), lamb(of_lamb), clip);
}

// SGD, whose steps show the gradient that was applied.
const Rule kDescent = [](Slot& s, int) { s.p.sub_(0.1 * s.g); };

TEST(LayerWise, ClippingByValueAndByTheLargestHasTorchsNumbers) {
  expect_numbers(
      [](Replica& model) {
        auto optimizer = std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.1});
        optimizer->set_clip_value(1e-3);
        return optimizer;
      },
      kDescent,
      [](TwoLayers& net) { torch::nn::utils::clip_grad_value_(net->parameters(), 1e-3); });
  expect_numbers(
      [](Replica& model) {
        auto optimizer = std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = 0.1});
        optimizer->set_clip_norm(1e-3, optim::Norm::kLargest);
        return optimizer;
      },
      kDescent,
      [](TwoLayers& net) {
        torch::nn::utils::clip_grad_norm_(net->parameters(), 1e-3,
                                          std::numeric_limits<double>::infinity());
      });
}

TEST(LayerWise, TheNormOfEachParameterIsKept) {
  in_world(1, [](World& world) {
    for (const std::string kind : {"sgd", "lars", "lamb", "clipped", "largest"}) {
      auto model = data_parallel(net_of(torch::kFloat32), world);
      const auto optimizer = make_optimizer(kind, model);
      if (kind == "clipped") optimizer->set_clip_norm(1e-3);
      if (kind == "largest") optimizer->set_clip_norm(1e-3, optim::Norm::kLargest);
      EXPECT_TRUE(optimizer->last_norms().empty());
      optimizer->keep_norms();
      loss_at(*model, 0).backward();
      optimizer->step();
      const auto norms = optimizer->last_norms();
      ASSERT_EQ(norms.size(), 4U);
      EXPECT_EQ(norms[0].name, "first.weight");
      double squares = 0;
      for (std::size_t i = 0; i < norms.size(); ++i) {
        const double expected = norm_of(model->parameters()[i].grad());
        EXPECT_NEAR(norms[i].norm, expected, 1e-12) << kind;
        squares += expected * expected;
      }
      if (kind == "largest") continue;
      EXPECT_NEAR(optimizer->last_norm(), std::sqrt(squares), 1e-12) << kind;
    }
  });
}

TEST(LayerWise, AStepThatWasSkippedHasNoNorms) {
  in_world(1, [](World& world) {
    auto model = data_parallel(net_of(torch::kFloat32), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    optimizer.keep_norms();
    GradScaler scaler;
    for (const bool overflows : {false, true, false}) {
      optimizer.zero_grad();
      const auto loss = loss_at(*model, 0);
      const float factor = overflows ? std::numeric_limits<float>::infinity() : 1;
      scaler.scale(loss * factor).backward();
      EXPECT_EQ(scaler.step(optimizer), !overflows);
      scaler.update();
      EXPECT_EQ(optimizer.last_norms().empty(), overflows);
      EXPECT_EQ(optimizer.last_norm() == 0, overflows);
    }
  });
}

TEST(LayerWise, TheAverageOfWeightsIsExponential) {
  in_world(1, [](World& world) {
    auto model = data_parallel(net_of(torch::kFloat64), world);
    optim::AdamW optimizer(model, {.lr = 1e-2});
    EXPECT_TRUE(optimizer.ema().empty());
    optimizer.set_ema(0.9);
    std::vector<torch::Tensor> expected;
    for (const auto& p : model->parameters()) expected.push_back(p.detach().clone());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_at(*model, step).backward();
      optimizer.step();
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = 0.9 * expected[i] + (1 - 0.9) * model->parameters()[i].detach();
    }
    const auto averages = optimizer.ema();
    ASSERT_EQ(averages.size(), expected.size());
    EXPECT_EQ(averages[3].name, "second.bias");
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_LT(largest_difference(averages[i].tensor, expected[i]), 1e-14);
    EXPECT_EQ(optimizer.state().back().name.substr(0, 4), "ema/");
  });
}

// With the rounded weights it would never follow small steps.
TEST(LayerWise, TheAverageOfHalfWeightsIsThatOfTheirMasters) {
  const WithoutOneDnn without_onednn;
  in_world(1, [](World& world) {
    auto model = data_parallel(net_of(torch::kBFloat16), world);
    optim::SGD optimizer(model, {.lr = 1e-3, .momentum = 0.9});
    loss_at(*model, 77).backward();
    optimizer.step();  // the masters are no longer the rounded weights
    optimizer.set_ema(0.9);
    const auto masters = [&] {
      std::map<std::string, torch::Tensor> all;
      for (const auto& [name, tensor] : optimizer.state()) {
        if (name.starts_with("master/")) all[name.substr(7)] = tensor.to(torch::kFloat64);
      }
      return all;
    };
    auto expected = masters();
    ASSERT_EQ(expected.size(), 4u);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_at(*model, step).backward();
      optimizer.step();
      for (auto& [name, average] : expected)
        average = 0.9 * average + (1 - 0.9) * masters().at(name);
    }
    for (const auto& [name, average] : optimizer.ema()) {
      EXPECT_EQ(average.scalar_type(), torch::kFloat32);
      // 20 roundings of numbers below 0.2; with rounded weights it would be 1e-4.
      EXPECT_LT(largest_difference(average.to(torch::kFloat64), expected.at(name)), 3e-7) << name;
    }
  });
}

TEST(LayerWise, WhatCannotWorkIsRefused) {
  in_world(1, [](World& world) {
    auto model = data_parallel(net_of(torch::kFloat32), world);
    EXPECT_THROW(optim::LARS(model, {.trust_coefficient = 0}), BadInput);
    EXPECT_THROW(optim::LARS(model, {.momentum = 0, .nesterov = true}), BadInput);
    EXPECT_THROW(optim::LAMB(model, {.beta2 = 1}), BadInput);
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      EXPECT_THROW(optim::LARS(model, {.lr = bad}), BadInput);
      EXPECT_THROW(optim::LARS(model, {.momentum = bad}), BadInput);
      EXPECT_THROW(optim::LARS(model, {.dampening = bad}), BadInput);
      EXPECT_THROW(optim::LARS(model, {.weight_decay = bad}), BadInput);
      EXPECT_THROW(optim::LARS(model, {.trust_coefficient = bad}), BadInput);
      EXPECT_THROW(optim::LARS(model, {.eps = bad}), BadInput);
      EXPECT_THROW(optim::LAMB(model, {.lr = bad}), BadInput);
      EXPECT_THROW(optim::LAMB(model, {.eps = bad}), BadInput);
      EXPECT_THROW(optim::LAMB(model, {.weight_decay = bad}), BadInput);
      EXPECT_THROW(optim::SGD(model, {.dampening = bad}), BadInput);
    }
    optim::SGD optimizer(model, {.lr = 0.1});
    EXPECT_THROW(optimizer.set_ema(1), BadInput);
    EXPECT_THROW(optimizer.set_ema(0), BadInput);
    EXPECT_THROW(optimizer.set_clip_value(-1), BadInput);
    optimizer.set_clip_value(1);
    EXPECT_THROW(optimizer.set_clip_norm(1), BadInput);
    optimizer.set_clip_value(0);
    optimizer.set_clip_norm(1);
    EXPECT_THROW(optimizer.set_clip_value(1), BadInput);
    optim::LARS rule(model, {});
    (loss_at(*model, 0) * std::numeric_limits<float>::infinity()).backward();
    const auto before = model->first->weight.detach().clone();
    EXPECT_THROW(rule.step(), BadInput);
    EXPECT_TRUE(torch::equal(model->first->weight, before));
  });
}

// What a job is made of: an optimizer, how it clips; all of them keep norms and an average.
struct Kind {
  std::string optimizer;
  double clip_norm = 0;
  optim::Norm norm = optim::Norm::kEuclidean;
  double clip_value = 0;
};

// Weights, averages and norms after `steps`; with a folder it goes on from there.
std::string trained(World& world, const Kind& kind, std::int64_t steps,
                    const std::string& folder = "") {
  Job job(world, loops::job_options(folder));
  auto net = models::make_mlp(loops::shape_of("mlp"), 60);  // whose layers cross slices
  {
    torch::NoGradGuard no_grad;
    std::uint64_t seed = 1;
    for (auto& parameter : net->parameters())
      parameter.copy_(0.2 * samples(seed++, parameter.sizes().vec()));
  }
  auto model = data_parallel(net, world);
  const auto optimizer = make_optimizer(kind.optimizer, model);
  optimizer->set_clip_norm(kind.clip_norm, kind.norm);
  optimizer->set_clip_value(kind.clip_value);
  optimizer->keep_norms();
  optimizer->set_ema(0.8);
  Step step(job, "train", {optimizer.get()},
            [net](const Shard& shard) { return models::loss(*net, shard.batch); });
  for (const GlobalBatch& batch : job.batches(loops::data_of("mlp"), {.steps = steps})) step(batch);
  if (!folder.empty()) job.save();
  std::vector<double> norms{optimizer->last_norm()};
  for (const auto& [name, norm] : optimizer->last_norms()) norms.push_back(norm);
  return job.weights_sha256() + replica::digest(optimizer->ema()) +
         replica::digest({{"norms", torch::tensor(norms, torch::kFloat64)}});
}

TEST(LayerWise, OneJobHasOneResultOnEveryNumberOfWorkers) {
  const std::vector<Kind> kinds = {
      {.optimizer = "lars"},
      {.optimizer = "lamb"},
      {.optimizer = "lars", .clip_value = 1e-2},
      {.optimizer = "lamb", .clip_norm = 0.05},
      {.optimizer = "sgd"},
      {.optimizer = "sgd", .clip_value = 1e-2},
      {.optimizer = "adamw", .clip_norm = 1e-2, .norm = optim::Norm::kLargest}};
  std::set<std::string> all;
  for (const Kind& kind : kinds) {
    World alone = World::over(connect_alone());
    const std::string expected = trained(alone, kind, 5);
    all.insert(expected);
    for (const std::string engine : {"shm", "thread", kTcpHosts}) {
      for (const int workers : {2, 3, 4, 8}) {
        EXPECT_EQ(loops::same_on_all(workers, engine,
                                     [&](World& world) { return trained(world, kind, 5); }),
                  expected)
            << kind.optimizer << " on " << workers << " workers, " << engine;
      }
    }
  }
  EXPECT_EQ(all.size(), kinds.size());
}

TEST(LayerWise, AJobGoesOnOnAnotherNumberOfWorkers) {
  for (const std::string name : {"lars", "lamb"}) {
    const Kind kind{.optimizer = name};
    World alone = World::over(connect_alone());
    const std::string expected = trained(alone, kind, 7);
    const Folder folder;
    const auto on = [&](int workers, const std::string& engine, std::int64_t steps) {
      return loops::same_on_all(workers, engine, [&](World& world) {
        return trained(world, kind, steps, folder.path());
      });
    };
    on(3, "shm", 2);
    on(1, "thread", 4);
    on(5, kTcpHosts, 6);
    EXPECT_EQ(on(2, "shm", 7), expected);
  }
}

TEST(LayerWise, AnotherLimitIsAnotherJob) {
  World alone = World::over(connect_alone());
  const Folder folder;
  trained(alone, {.optimizer = "sgd"}, 2, folder.path());
  try {
    trained(alone, {.optimizer = "sgd", .clip_value = 0.5}, 3, folder.path());
    FAIL();
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), HasSubstr("clip_value"));
  }
}

}  // namespace
}  // namespace lockstep::testing::layer_wise
