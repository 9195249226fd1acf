// What a program may do to a replicated model beside training it, on every engine: it works, or it is an error. Replicas
// never part without a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <chrono>
#include <sstream>

#include "tests/torch/optimizers.h"
#include "tests/torch/replica_cases.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing::replicas {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class OnEveryEngine : public ::testing::TestWithParam<std::string> {
 protected:
  void in_world_of(int workers, const std::function<void(World&)>& body) {
    in_world(workers, GetParam(), body);
  }
  std::vector<Outcome> outcomes(int workers, const std::function<void(World&)>& body) {
    return outcomes_in_world(workers, body, GetParam());
  }
  // Every worker ends in a Mismatch, soon, with this text.
  void expect_mismatch(const std::string& text, const std::function<void(World&)>& body,
                       int workers = 2) {
    for (const Outcome& outcome : outcomes(workers, body)) {
      ASSERT_TRUE(outcome.kind) << "nobody noticed";
      EXPECT_EQ(*outcome.kind, ErrorKind::kMismatch) << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr(text));
      EXPECT_LT(outcome.took, std::chrono::seconds(10));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, OnEveryEngine, ::testing::ValuesIn(cpu_engines()),
                         [](const auto& engine) { return engine.param; });

std::string saved(TwoLayers net) {
  std::ostringstream file;
  torch::save(net, file);
  return file.str();
}

void train_step(TwoLayersImpl& net, torch::optim::Optimizer& optimizer, int rank) {
  optimizer.zero_grad();
  loss_of(net, batch_of(rank)).backward();
  optimizer.step();
}

// One process with the mean of all workers' losses.
TwoLayers trained_alone(int workers, int steps, std::uint64_t seed) {
  auto net = seeded<TwoLayers>(seed);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::Tensor sum = torch::zeros({});
    for (int rank = 0; rank < workers; ++rank) sum = sum + loss_of(*net, batch_of(rank));
    (sum / workers).backward();
    optimizer.step();
  }
  return net;
}

TEST_P(OnEveryEngine, LoadingIntoAWrappedModelGoesOnAveraging) {
  const std::string file = saved(seeded<TwoLayers>(kSeed + 1));
  const auto expected = trained_alone(2, 3, kSeed + 1);
  in_world_of(2, [&](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto model = data_parallel(net, world);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    train_step(*net, optimizer, world.rank());
    std::istringstream in(file);
    torch::load(net, in);
    for (int step = 0; step < 3; ++step) train_step(*net, optimizer, world.rank());
    EXPECT_TRUE(model.identical());
    for (std::size_t i = 0; i < expected->parameters().size(); ++i)
      EXPECT_LT(largest_difference(net->parameters()[i], expected->parameters()[i]), 1e-6);
  });
}

TEST_P(OnEveryEngine, LoadingBetweenBackwardAndStepOfOurOwnOptimizerWorks) {
  const std::string file = saved(seeded<TwoLayers>(kSeed + 1));
  in_world_of(2, [&](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.1});
    auto plain = seeded<TwoLayers>(kSeed + 1);
    const auto expected = plain_mean(2);
    loss_of(*net, batch_of(world.rank())).backward();
    std::istringstream in(file);
    torch::load(net, in);
    optimizer.step();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto wanted = plain->parameters()[i].detach() - 0.1 * expected[i];
      EXPECT_LT(largest_difference(net->parameters()[i], wanted), 1e-6);
    }
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss_of(*net, batch_of(world.rank())).backward();
      optimizer.step();
    }
    EXPECT_TRUE(model.identical());
  });
}

TEST_P(OnEveryEngine, LoadingOnOneWorkerAloneIsAMismatch) {
  const std::string file = saved(seeded<TwoLayers>(kSeed + 1));
  expect_mismatch("weights", [&](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto model = data_parallel(net, world);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    std::istringstream in(file);
    if (world.leader()) torch::load(net, in);
    for (int step = 0; step < 3; ++step) train_step(*net, optimizer, world.rank());
  });
}

TEST_P(OnEveryEngine, ConvertingAWrappedModelIsAnErrorOfTheNextBackward) {
  const auto ended = outcomes(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto model = data_parallel(net, world);
    net->to(torch::kFloat64);
    loss_of(*net, batch_of(world.rank()).to(torch::kFloat64)).backward();
    ADD_FAILURE() << "backward() said nothing";
  });
  // The one that is first tells; the other may be told that it has left.
  bool told = false;
  for (const Outcome& outcome : ended) {
    EXPECT_TRUE(outcome.kind);
    told = told || outcome.text.find("before data_parallel()") != std::string::npos;
  }
  EXPECT_TRUE(told);
}

TEST_P(OnEveryEngine, WrappingAgainReplacesTheFirstWrap) {
  in_world_of(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto first = data_parallel(net, world);
    optim::SGD stale(first, {.lr = 0.1});
    auto second = data_parallel(net, world);
    loss_of(*net, batch_of(world.rank())).backward();
    expect_close(gradients(*net), plain_mean(2));
    EXPECT_THROW(stale.step(), BadInput);
    EXPECT_THROW(first.zero_grad(), BadInput);
    EXPECT_THROW(first.synchronize(), BadInput);
    second.zero_grad();
    loss_of(*net, batch_of(world.rank())).backward();
    expect_close(gradients(*net), plain_mean(2));
  });
}

// A graph keeps the hooks of the first replica alive, and its optimizer the replica.
TEST_P(OnEveryEngine, AReplacedReplicaIsSilentAlsoInAGraphOfBefore) {
  in_world_of(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    net->first->bias.set_requires_grad(false);
    auto first = data_parallel(net, world);
    optim::SGD stale(first, {.lr = 0.1});
    const auto kept = loss_of(*net, batch_of(world.rank()));
    net->first->bias.set_requires_grad(true);
    auto second = data_parallel(net, world);
    loss_of(*net, batch_of(world.rank())).backward();
    expect_close(gradients(*net), plain_mean(2));
    EXPECT_TRUE(second.identical());
  });
}

TEST_P(OnEveryEngine, UnfreezingAndWrappingAgainTrainsTheRest) {
  in_world_of(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    net->first->weight.set_requires_grad(false);
    auto model = data_parallel(net, world);
    loss_of(*net, batch_of(world.rank())).backward();
    net->first->weight.set_requires_grad(true);
    model.zero_grad();
    model = data_parallel(net, world);
    loss_of(*net, batch_of(world.rank())).backward();
    expect_close(gradients(*net), plain_mean(2));
  });
}

// Each of these ended well over messages, with replicas that had parted.
TEST_P(OnEveryEngine, AnotherLearningRateOnOneWorkerIsAMismatch) {
  expect_mismatch("learning rate", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      loss_of(*model, batch_of(world.rank())).backward();
      if (step == 2 && world.rank() == 1) optimizer.set_lr(0.2);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST_P(OnEveryEngine, OtherOptionsOrClippingOnOneWorkerAreAMismatch) {
  expect_mismatch("optimizer", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1, .momentum = world.rank() == 1 ? 0.9 : 0.8});
  });
  expect_mismatch("clipping", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    optimizer.set_clip_norm(world.rank() == 1 ? 1.0 : 2.0);
    loss_of(*model, batch_of(world.rank())).backward();
    optimizer.step();
  });
}

TEST_P(OnEveryEngine, AStepMoreOnOneWorkerIsAMismatch) {
  expect_mismatch("optimizer.step()", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      loss_of(*model, batch_of(world.rank())).backward();
      optimizer.step();
      if (step == 1 && world.rank() == 1) optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST_P(OnEveryEngine, AStepThatOneWorkerSkipsIsAMismatch) {
  expect_mismatch("optimizer.step()", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      loss_of(*model, batch_of(world.rank())).backward();
      if (step != 1 || world.rank() != 1) optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST_P(OnEveryEngine, GradientsThatOneWorkerChangedAreAMismatch) {
  expect_mismatch("gradients", [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    loss_of(*model, batch_of(world.rank())).backward();
    torch::NoGradGuard no_grad;
    if (world.rank() == 1) {
      for (auto& parameter : model->parameters()) parameter.mutable_grad().mul_(3);
    }
    optimizer.step();
  });
}

TEST_P(OnEveryEngine, AStepOnWhatWasNotAveragedIsRefused) {
  in_world_of(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    optim::SGD optimizer(model, {.lr = 0.1});
    {
      const auto scope = model.no_sync();
      loss_of(*model, batch_of(world.rank())).backward();
    }
    EXPECT_THROW(optimizer.step(), BadInput);
    world.comm().barrier().wait();
  });
}

TEST_P(OnEveryEngine, WeightedSumsThatSomebodyElseClearedAreRefused) {
  for (const bool to_none : {false, true}) {
    in_world_of(2, [&](World& world) {
      auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
      {
        const auto scope = model.no_sync();
        backward(loss_of(*model, batch_of(world.rank())), 6);
      }
      model->zero_grad(to_none);
      EXPECT_THROW(
          {
            const auto scope = model.no_sync();
            backward(loss_of(*model, batch_of(world.rank())), 6);
          },
          BadInput);
      model.zero_grad();
      backward(loss_of(*model, batch_of(world.rank())), 6);
      expect_close(gradients(*model), plain_mean(2));
    });
  }
}

// Where workers share memory they had one copy of the parameters until then.
TEST_P(OnEveryEngine, AnOptimizerOfLibTorchsMayFollowOurs) {
  in_world_of(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto model = data_parallel(net, world);
    optim::SGD ours(model, {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      ours.zero_grad();
      loss_of(*net, batch_of(world.rank())).backward();
      ours.step();
    }
    torch::optim::SGD stock(net->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) train_step(*net, stock, world.rank());
    EXPECT_TRUE(model.identical());
    ours.zero_grad();
    loss_of(*net, batch_of(world.rank())).backward();
    ours.step();

    auto plain = seeded<TwoLayers>(kSeed);
    torch::optim::SGD all(plain->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      all.zero_grad();
      for (int rank = 0; rank < 2; ++rank) (loss_of(*plain, batch_of(rank)) / 2).backward();
      all.step();
    }
    expect_close(net->parameters(), plain->parameters());
  });
}

struct WithNormImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(norm(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 16));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 4));
};
TORCH_MODULE(WithNorm);

// A program may give a buffer another size, on all workers.
TEST_P(OnEveryEngine, ABufferMayGrow) {
  in_world_of(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    net->register_buffer("seen", torch::zeros({2}));
    auto model = data_parallel(net, world);
    for (int step = 0; step < 6; ++step) {
      torch::Tensor seen = net->named_buffers()["seen"];
      seen.resize_({2 + 3000 * step}).fill_(step + world.rank());
      loss_of(*net, batch_of(world.rank())).backward();
      EXPECT_TRUE(seen.eq(step).all().item<bool>()) << "rank 0's, as with DDP";
      model.zero_grad();
    }
  });
}

// How many buckets go before the end of a weighted pass depends on when the notes of others come.
TEST_P(OnEveryEngine, WeightsBuffersAndMissingGradientsGoTogether) {
  in_world_of(3, [](World& world) {
    auto net = seeded<WithNorm>(kSeed);
    auto model = data_parallel(
        net, world,
        {.missing_gradient = MissingGradient::kZero, .first_bucket_bytes = 64, .bucket_bytes = 64});
    optim::SGD optimizer(model, {.lr = 0.1});
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      const auto data = samples(static_cast<std::uint64_t>(step * 3 + world.rank()), {4, 8});
      backward(net->forward(data).pow(2).mean(), 4 + world.rank());
      optimizer.step();
    }
    EXPECT_TRUE(model.identical());
  });
}

TEST_P(OnEveryEngine, AParameterThatWasRegisteredLaterIsRefused) {
  in_world_of(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto model = data_parallel(net, world);
    net->register_module("late", torch::nn::Linear(2, 2));
    EXPECT_THROW(loss_of(*net, batch_of(world.rank())).backward(), BadInput);
    model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
    model.zero_grad();
    loss_of(*net, batch_of(world.rank())).backward();
    EXPECT_FALSE(net->named_modules()["late"]->parameters()[0].grad().defined());
  });
}

// An optimizer of LibTorch's says nothing to anybody; the weights do.
TEST_P(OnEveryEngine, AStockOptimizerThatDiffersOnOneWorkerIsAMismatch) {
  for (const bool skips : {false, true}) {
    expect_mismatch("weights", [&](World& world) {
      auto net = seeded<TwoLayers>(kSeed);
      auto model = data_parallel(net, world);
      const bool odd = world.rank() == 1;
      torch::optim::SGD optimizer(net->parameters(), odd && !skips ? 0.2 : 0.1);
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        loss_of(*net, batch_of(world.rank())).backward();
        if (!skips || !odd || step != 1) optimizer.step();
      }
    });
  }
}

TEST_P(OnEveryEngine, ReplicasMadeInAnotherOrderAreAMismatch) {
  for (const bool one_backward : {false, true}) {
    expect_mismatch("order", [&](World& world) {
      auto a = seeded<TwoLayers>(kSeed, 8, 16, 8);
      auto b = seeded<TwoLayers>(kSeed, 8, 16, 8);
      std::vector<DataParallel<TwoLayers>> models;
      for (const auto& net : world.rank() == 0 ? std::vector{a, b} : std::vector{b, a})
        models.push_back(data_parallel(net, world));
      const auto x = batch_of(world.rank());
      for (int step = 0; step < 2; ++step) {
        if (one_backward) {
          loss_of(*b, a->forward(x)).backward();
        } else {
          loss_of(*a, x).backward();
          loss_of(*b, x).backward();
        }
        for (auto& model : models) model.zero_grad();
      }
    });
  }
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl()
      : body(register_module("body", torch::nn::Linear(8, 16))),
        left(register_module("left", torch::nn::Linear(16, 4))),
        right(register_module("right", torch::nn::Linear(16, 4))) {}
  torch::Tensor forward(const torch::Tensor& x, bool to_left) {
    return to_left ? left(torch::relu(body(x))) : right(torch::relu(body(x)));
  }
  torch::nn::Linear body, left, right;
};
TORCH_MODULE(TwoHeads);

// As DDP with find_unused_parameters: weight decay and momentum leave alone what nobody used.
template <typename MakeOptimizer>
std::vector<torch::Tensor> train_heads(World& world, const MakeOptimizer& make) {
  auto net = seeded<TwoHeads>(kSeed);
  auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
  auto optimizer = make(net, model);
  for (int step = 0; step < 6; ++step) {
    model.zero_grad();  // to none, as LibTorch 2's; 1.13's zeros would count as gradients
    // Steps 0 and 3: one worker each; else nobody goes right.
    const bool to_left = step % 3 != 0 || world.rank() == 0;
    net->forward(batch_of(world.rank()), to_left).pow(2).mean().backward();
    const bool used = step % 3 == 0 && world.size() > 1;
    EXPECT_EQ(net->right->weight.grad().defined(), used) << step;
    optimizer->step();
    EXPECT_EQ(net->right->weight.grad().defined(), used) << step;
  }
  return net->parameters();
}

// Whatever clears its gradients: there never was one.
TEST_P(OnEveryEngine, AParameterThatNobodyEverUsedIsNotMovedByAStockOptimizer) {
  in_world_of(2, [](World& world) {
    auto net = seeded<TwoHeads>(kSeed);
    auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
    const auto before = net->right->weight.detach().clone();
    torch::optim::AdamW optimizer(net->parameters(),
                                  torch::optim::AdamWOptions(0.05).weight_decay(0.3));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      net->forward(batch_of(world.rank()), true).pow(2).mean().backward();
      optimizer.step();
    }
    EXPECT_TRUE(torch::equal(net->right->weight, before));
  });
}

TEST_P(OnEveryEngine, AParameterThatNoWorkerUsedKeepsAnUndefinedGradient) {
  in_world_of(2, [](World& world) {
    for (const std::string& name : optimizer_names()) {
      const auto expected = train_heads(world, [&](TwoHeads& net, auto&) {
        return make_stock_optimizer(name, net->parameters());
      });
      const auto ours =
          train_heads(world, [&](TwoHeads&, auto& model) { return make_optimizer(name, model); });
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_LT(largest_difference(ours[i], expected[i]), 1e-6) << name << ", " << i;
    }
  });
}

}  // namespace
}  // namespace lockstep::testing::replicas
