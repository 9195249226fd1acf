// Optimizers of the program's own in Steps and the Trainer: plain LibTorch's bits with the averaged gradient, and one
// result on every number of workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <chrono>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/support/workers.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::wrapped {
namespace {

using loops::data_of;
using loops::job_options;
using loops::kSteps;
using ::testing::HasSubstr;
using Stock = std::shared_ptr<torch::optim::Optimizer>;
using Parameters = std::vector<torch::Tensor>;

struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {
  explicit SignOptions(double its_lr) : lr(its_lr) {}
  double get_lr() const override { return lr; }
  void set_lr(const double its) override { lr = its; }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(lr));
    archive.write("momentum", c10::IValue(momentum));
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("lr", value);
    lr = value.toDouble();
    archive.read("momentum", value);
    momentum = value.toDouble();
  }
  double lr;
  double momentum = 0.9;
};

struct SignState : torch::optim::OptimizerCloneableParamState<SignState> {
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("momentum", momentum);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    archive.read("momentum", momentum);
  }
  torch::Tensor momentum;
};

// As LibTorch names the state of a parameter; 1.13 has text.
template <typename Key>
Key key_of(const torch::Tensor& parameter) {
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

// Follows the sign of a momentum. `kSaves`: it also writes its state.
template <bool kSaves = true>
class SignSgd : public torch::optim::Optimizer {
 public:
  explicit SignSgd(Parameters parameters, double lr = 1e-2, std::int64_t fails_at = -1)
      : Optimizer(std::move(parameters), std::make_unique<SignOptions>(lr)), fails_at_(fails_at) {}

  torch::Tensor step(LossClosure) override {
    if (calls++ == fails_at_) throw std::runtime_error("no sign today");
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<const SignOptions&>(group.options());
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& kept = state_[key_of<std::decay_t<decltype(state_.begin()->first)>>(parameter)];
        if (!kept) {
          auto fresh = std::make_unique<SignState>();
          fresh->momentum = torch::zeros_like(parameter);
          kept = std::move(fresh);
        }
        auto& momentum = static_cast<SignState&>(*kept).momentum;
        momentum.mul_(options.momentum).add_(parameter.grad());
        parameter.sub_(options.lr * momentum.sign());
      }
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if constexpr (kSaves) torch::optim::serialize<SignState, SignOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if constexpr (kSaves) torch::optim::serialize<SignState, SignOptions>(archive, *this);
  }

  std::int64_t calls = 0;

 private:
  std::int64_t fails_at_;
};

Stock sign_sgd(const Parameters& parameters) {
  return std::make_shared<SignSgd<>>(parameters);
}
Stock adam(const Parameters& parameters) {
  return std::make_shared<torch::optim::Adam>(
      parameters, torch::optim::AdamOptions(1e-2).weight_decay(0.1).amsgrad(true));
}
using Make = std::function<Stock(const Parameters&)>;

// A model with an optimizer that the program has made for it.
struct Own {
  Own(World& world, const Make& make)
      : net(loops::net_of("mlp")),
        model(data_parallel(net, world)),
        theirs(make(net->parameters())),
        optimizer(std::make_shared<optim::Wrapped>(model, theirs)) {}
  Step::Loss loss() const {
    return [net = net](const Shard& shard) { return models::loss(*net, shard.batch); };
  }

  std::shared_ptr<models::Net> net;
  DataParallel<std::shared_ptr<models::Net>> model;
  Stock theirs;
  std::shared_ptr<optim::Wrapped> optimizer;
};

// Weights after `steps`; with a folder it goes on from there.
std::string trained(World& world, const Make& make, std::int64_t steps = kSteps,
                    const std::string& folder = "", StepOptions options = {}) {
  loops::Job job(world, job_options(folder));
  Own own(world, make);
  Step step(job, "train", {own.optimizer.get()}, own.loss(), std::move(options));
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = steps})) step(batch);
  EXPECT_EQ(own.optimizer->steps(), steps);
  EXPECT_TRUE(own.model.identical());
  if (!folder.empty()) job.save();
  return job.weights_sha256();
}

std::string alone(const Make& make) {
  World world = World::over(connect_alone());
  return trained(world, make);
}

// The averages that a Step had, and plain LibTorch from there.
void expect_plain_bits(const Make& make) {
  World world = World::over(connect_alone());
  loops::Job job(world, job_options());
  Own own(world, make);
  auto plain = loops::net_of("mlp");
  const Stock reference = make(plain->parameters());
  const auto before = [&](std::int64_t) {
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      plain->parameters()[i].mutable_grad() = own.net->parameters()[i].grad().clone();
  };
  Step step(job, "train", {own.optimizer.get()}, own.loss(), {.before_update = before});
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) {
    step(batch);
    reference->step();
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      ASSERT_TRUE(torch::equal(plain->parameters()[i], own.net->parameters()[i])) << batch.step();
  }
}

TEST(Wrapped, HasTheBitsOfPlainLibTorchWithTheAveragedGradient) {
  expect_plain_bits(sign_sgd);
  expect_plain_bits(adam);
}

TEST(Wrapped, HasOneHashOnAnyNumberOfWorkers) {
  for (const Make& make : {Make(sign_sgd), Make(adam)}) {
    const std::string expected = alone(make);
    for (const std::string engine : {"thread", "shm"}) {
      for (const int workers : {2, 3}) {
        EXPECT_EQ(
            loops::same_on_all(workers, engine, [&](World& world) { return trained(world, make); }),
            expected)
            << workers << " workers, " << engine;
      }
    }
  }
}

// Stochastic gradient Langevin dynamics, and noise on gradients.
TEST(Wrapped, DrawsTheSameRandomNumbersOnAllWorkers) {
  struct Noisy : SignSgd<> {
    using SignSgd<>::SignSgd;
    torch::Tensor step(LossClosure closure) override {
      SignSgd<>::step(std::move(closure));
      const torch::NoGradGuard no_grad;
      for (auto& one : param_groups()[0].params()) one.add_(torch::randn_like(one), 1e-4);
      return {};
    }
  };
  const auto noisy = [](World& world, double noise) {
    Parameters all;
    StepOptions options;
    options.before_update = [&](std::int64_t) {
      for (auto& one : all) one.mutable_grad().add_(torch::randn(one.sizes()), noise);
    };
    const auto make = [&](const Parameters& parameters) {
      all = parameters;
      return std::make_shared<Noisy>(parameters);
    };
    return trained(world, make, kSteps, "", options);
  };
  World alone = World::over(connect_alone());
  torch::manual_seed(1);
  const std::string expected = noisy(alone, 1e-3);
  EXPECT_NE(noisy(alone, 1e-2), expected);
  torch::manual_seed(2);
  for (const std::string engine : {"thread", "shm"}) {
    EXPECT_EQ(loops::same_on_all(3, engine, [&](World& world) { return noisy(world, 1e-3); }),
              expected)
        << engine;
  }
}

TEST(Wrapped, TrainsInATrainerAndGoesOnThere) {
  const auto run = [](World& world, std::int64_t steps, const std::string& folder) {
    Own own(world, sign_sgd);
    TrainerParts parts{own.model, own.net, own.optimizer, data_of("mlp")};
    parts.loss = [net = own.net](const Batch& batch) { return models::loss(*net, batch); };
    return Trainer(world, parts,
                   {.steps = steps,
                    .global_batch = 16,
                    .shards = 8,
                    .seed = loops::kSeed,
                    .checkpoint_directory = folder,
                    .existing_checkpoint = ExistingCheckpoint::kResume})
        .run()
        .weights_sha256;
  };
  const Folder folder;
  const auto on = [&](int workers, std::int64_t steps) {
    return loops::same_on_all(workers, "shm",
                              [&](World& world) { return run(world, steps, folder.path()); });
  };
  on(2, 4);
  EXPECT_EQ(on(3, kSteps), alone(sign_sgd));
}

TEST(Wrapped, StateGoesOnFromACheckpointOnAnotherNumberOfWorkers) {
  for (const Make& make : {Make(sign_sgd), Make(adam)}) {
    const Folder folder;
    const auto on = [&](int workers, std::int64_t steps) {
      return loops::same_on_all(
          workers, "shm", [&](World& world) { return trained(world, make, steps, folder.path()); });
    };
    on(1, 2);
    on(3, 4);
    EXPECT_EQ(on(2, kSteps), alone(make));
    World world = World::over(connect_alone());
    const Make other = [&](const Parameters& parameters) {
      auto made = make(parameters);
      if (auto* const sign = dynamic_cast<SignSgd<>*>(made.get())) {
        static_cast<SignOptions&>(sign->param_groups()[0].options()).momentum = 0.5;
      } else {
        static_cast<torch::optim::AdamOptions&>(made->param_groups()[0].options()).eps(1e-3);
      }
      return made;
    };
    EXPECT_THROW(trained(world, other, kSteps, folder.path()), Mismatch);
  }
}

// One worker, then two: the second comes without state.
TEST(Wrapped, AWorkerThatJoinsGetsTheState) {
  const Folder folder;
  const auto join = [&](int rank, int size) {
    const std::string there = folder / std::to_string(size);
    EXPECT_TRUE(base::make_directories(there));
    FolderBootstrap bootstrap(there, rank, size);
    return std::make_unique<World>(
        World::over(connect("shm", bootstrap, {.timeout = std::chrono::seconds(20)})));
  };
  const auto live = [&](bool comes_later) {
    auto world = comes_later ? join(1, 2) : join(0, 1);
    loops::Job job(*world, job_options());
    Own own(*world, sign_sgd);
    Step step(job, "train", {own.optimizer.get()}, own.loss());
    const auto run = [&](std::int64_t until) {
      for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = until})) step(batch);
    };
    if (!comes_later) {
      run(3);
      auto next = join(0, 2);
      job.rebind(*next);
      world = std::move(next);
    }
    run(kSteps);
    return job.weights_sha256();
  };
  const std::string expected = alone(sign_sgd);
  auto first = std::async(std::launch::async, live, false);
  auto second = std::async(std::launch::async, live, true);
  EXPECT_EQ(first.get(), expected);
  EXPECT_EQ(second.get(), expected);
}

TEST(Wrapped, IsSavedAndLoadedWithTorchSave) {
  World world = World::over(connect_alone());
  Own one(world, adam);
  Own two(world, adam);
  const auto train = [](Own& own) {
    for (int i = 0; i < 3; ++i) {
      own.optimizer->zero_grad();
      own.net->forward(samples(static_cast<std::uint64_t>(i), {4, 10})).pow(2).mean().backward();
      own.optimizer->step();
    }
  };
  std::stringstream fresh;  // LibTorch's load() leaves holes for parameters without state
  torch::save(*one.optimizer, fresh);
  torch::load(*two.optimizer, fresh);
  train(two);
  train(one);
  std::stringstream file;
  torch::save(*one.optimizer, file);
  two.optimizer->set_lr(0.5);
  torch::load(*two.optimizer, file);
  EXPECT_EQ(two.optimizer->lr(), 1e-2);
  EXPECT_EQ(two.optimizer->steps(), 3);
  train(one);
  train(two);
  for (std::size_t i = 0; i < one.net->parameters().size(); ++i)
    EXPECT_TRUE(torch::equal(one.net->parameters()[i], two.net->parameters()[i]));
  Own sign(world, sign_sgd);
  std::stringstream other;
  torch::save(*one.optimizer, other);
  EXPECT_THROW(torch::load(*sign.optimizer, other), Mismatch);
  EXPECT_THROW(sign.optimizer->load_state(one.optimizer->state(), 3), Mismatch);
  optim::Adam ours(one.model, {});
  EXPECT_THROW(ours.load_state(one.optimizer->state(), 3), Mismatch);
}

TEST(Wrapped, FollowsSchedulesAndSchedulers) {
  World world = World::over(connect_alone());
  Own own(world, sign_sgd);
  const auto rate = [&] { return own.theirs->param_groups()[0].options().get_lr(); };
  own.optimizer->set_lr(0.5);
  EXPECT_EQ(rate(), 0.5);
  torch::optim::StepLR scheduler(*own.optimizer, 1, 0.5);
  for (int i = 0; i < 2; ++i) scheduler.step();  // the first changes nothing
  EXPECT_EQ(own.optimizer->lr(), 0.25);
  EXPECT_EQ(rate(), 0.25);
  const auto halving = [](std::int64_t step) { return 1e-2 / static_cast<double>(step + 1); };
  const std::string one = trained(world, sign_sgd, 4, "", {.learning_rate = halving});
  EXPECT_NE(one, trained(world, sign_sgd, 4));
  EXPECT_EQ(loops::same_on_all(2, "shm",
                               [&](World& two) {
                                 return trained(two, sign_sgd, 4, "", {.learning_rate = halving});
                               }),
            one);
}

// An SGD of LibTorch's, wrapped, and Lockstep's. They have the same numbers, up to roundings.
std::shared_ptr<optim::Optimizer> make_sgd(Replica& model, const Parameters& parameters,
                                           bool wraps) {
  std::shared_ptr<optim::Optimizer> optimizer;
  if (wraps) {
    optimizer = std::make_shared<optim::Wrapped>(
        model, std::make_shared<torch::optim::SGD>(
                   parameters, torch::optim::SGDOptions(0.1).weight_decay(0.1)));
  } else {
    optimizer =
        std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.1, .weight_decay = 0.1});
  }
  optimizer->set_clip_norm(1e-2);
  optimizer->keep_norms();
  return optimizer;
}

TEST(Wrapped, ClipsAndUnscalesAsLockstepsOwn) {
  struct Trained {
    torch::Tensor weight, norms;
    std::string hash;
  };
  const auto run = [](World& world, bool wraps) {
    auto net = loops::net_of("mlp");
    auto model = data_parallel(net, world);
    const auto optimizer = make_sgd(model, net->parameters(), wraps);
    GradScaler scaler({.growth_interval = 2});
    loops::Job job(world, job_options());
    Step step(job, "train", {optimizer.get()},
              [&](const Shard& shard) {
                const auto loss = models::loss(*net, shard.batch);
                const bool bad = shard.step == 2 && shard.index == 1;
                return bad ? loss * std::numeric_limits<float>::infinity() : loss;
              },
              {.scaler = &scaler});
    std::vector<double> norms;
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 5})) {
      EXPECT_EQ(step(batch).skipped, batch.step() == 2);
      norms.push_back(optimizer->last_norm());
      for (const auto& [name, norm] : optimizer->last_norms()) norms.push_back(norm);
    }
    EXPECT_EQ(optimizer->steps(), 4);
    return Trained{net->parameters()[0].detach().clone(), torch::tensor(norms),
                   job.weights_sha256()};
  };
  World world = World::over(connect_alone());
  const Trained ours = run(world, false);
  const Trained theirs = run(world, true);
  EXPECT_TRUE(torch::allclose(ours.weight, theirs.weight));
  EXPECT_TRUE(torch::allclose(ours.norms, theirs.norms));
  for (const std::string engine : {"shm", kTcpHosts})
    EXPECT_EQ(loops::same_on_all(3, engine, [&](World& three) { return run(three, true).hash; }),
              theirs.hash);
}

// The layer that the loss does not need keeps its weights, which would decay.
TEST(Wrapped, TrainsInTheDropInLoopAndLeavesUnusedParametersAlone) {
  const auto run = [](World& world, bool wraps) {
    auto net = seeded<TwoLayers>(loops::kSeed);
    auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
    const auto optimizer = make_sgd(model, net->parameters(), wraps);
    const auto unused = net->second->weight.detach().clone();
    for (std::uint64_t step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      const auto x = samples(10 * step + static_cast<std::uint64_t>(world.rank()), {4, 8});
      net->first(x).pow(2).mean().backward();
      optimizer->step();
      if (wraps) {
        EXPECT_LT(net->first->weight.grad().norm().item<double>(), 1.0001e-2);
      }
    }
    EXPECT_TRUE(torch::equal(net->second->weight, unused));
    EXPECT_TRUE(model.identical());
    return net->first->weight.detach().clone();
  };
  for (const std::string engine : {"thread", "shm"}) {
    in_world(2, engine, [&](World& world) {
      EXPECT_TRUE(torch::allclose(run(world, true), run(world, false))) << engine;
    });
  }
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "nothing was refused";
}

struct NoRate : torch::optim::OptimizerCloneableOptions<NoRate> {};
class WithoutRate : public torch::optim::Optimizer {
 public:
  explicit WithoutRate(Parameters parameters)
      : Optimizer(std::move(parameters), std::make_unique<NoRate>()) {}
  torch::Tensor step(LossClosure) override { return {}; }
};

TEST(Wrapped, WhatCannotWorkIsRefusedInOneLine) {
  World world = World::over(connect_alone());
  const auto with = [&](const Make& make) { return refusal([&] { Own own(world, make); }); };
  EXPECT_THAT(with([](const Parameters&) { return nullptr; }), HasSubstr("wants an optimizer"));
  EXPECT_THAT(
      with([](const Parameters& all) { return std::make_shared<torch::optim::LBFGS>(all); }),
      HasSubstr("cannot take LBFGS"));
  EXPECT_THAT(with([](const Parameters& all) { return std::make_shared<WithoutRate>(all); }),
              HasSubstr("no get_lr() and set_lr()"));
  EXPECT_THAT(with([](const Parameters& all) { return sign_sgd({all[0]}); }),
              HasSubstr("does not have"));
  EXPECT_THAT(with([](Parameters all) {
                all.push_back(torch::zeros(2));
                return sign_sgd(all);
              }),
              HasSubstr("that the model does not have"));
  auto net = loops::net_of("mlp");
  net->to(torch::kBFloat16);
  auto half = data_parallel(net, world);
  EXPECT_THAT(refusal([&] { optim::Wrapped(half, sign_sgd(net->parameters())); }),
              HasSubstr("no float32 masters"));
  Own own(world, sign_sgd);
  EXPECT_THAT(refusal([&] { own.optimizer->set_ema(0.9); }), HasSubstr("set_ema() is not for"));
  const Make failing = [](const Parameters& all) {
    return std::make_shared<SignSgd<>>(all, 1e-2, 3);
  };
  EXPECT_THAT(refusal([&] { trained(world, failing); }),
              HasSubstr("has failed at step 3: no sign today"));
  const Make forgetful = [](const Parameters& all) {
    return std::make_shared<SignSgd<false>>(all);
  };
  const Folder folder;
  EXPECT_THAT(refusal([&] { trained(world, forgetful, 2, folder.path()); }),
              HasSubstr("keeps state that its save() does not write"));
  EXPECT_NO_THROW(trained(world, forgetful, 2));
}

TEST(Wrapped, WorkersWithOtherOptionsAreTold) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    Own own(world, [&](const Parameters& all) {
      auto made = std::make_shared<SignSgd<>>(all);
      static_cast<SignOptions&>(made->param_groups()[0].options()).momentum =
          world.leader() ? 0.9 : 0.8;
      return made;
    });
  });
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.text, HasSubstr("workers have different optimizers"));
}

TEST(Wrapped, AStepThatFailsOnOneWorkerEndsAllOfThem) {
  const auto outcomes = outcomes_in_world(
      2,
      [](World& world) {
        trained(world, [&](const Parameters& all) {
          return std::make_shared<SignSgd<>>(all, 1e-2, world.rank() == 1 ? 3 : -1);
        });
      },
      "shm");
  EXPECT_THAT(outcomes[1].text, HasSubstr("has failed at step 3: no sign today"));
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kPeerLost);
}

// It depends on the worker, so copies part.
TEST(Wrapped, AnOptimizerThatDiffersBetweenWorkersIsFoundByTheDivergenceCheck) {
  struct Drifting : SignSgd<> {
    using SignSgd<>::SignSgd;
    torch::Tensor step(LossClosure closure) override {
      SignSgd<>::step(std::move(closure));
      const torch::NoGradGuard no_grad;
      if (calls == 2 && drifts) param_groups()[0].params()[0].add_(1);
      return {};
    }
    bool drifts = false;
  };
  for (const std::string engine : {"thread", "shm"}) {
    const auto outcomes = outcomes_in_world(
        3,
        [](World& world) {
          trained(world, [&](const Parameters& all) {
            auto made = std::make_shared<Drifting>(all);
            made->drifts = world.rank() == 1;
            return made;
          });
        },
        engine);
    for (const auto& outcome : outcomes)
      EXPECT_THAT(outcome.text, HasSubstr("hold different values")) << engine;
  }
}

}  // namespace
}  // namespace lockstep::testing::wrapped
