// A replicated model against plain LibTorch: the same averages, and clear errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/errors.h>
#include <torch/script.h>

#include <deque>
#include <mutex>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "tests/torch/replica_cases.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing::replicas {
namespace {

using ::testing::HasSubstr;

TEST(Replica, BackwardLeavesTheMeanOverWorkers) {
  for (const int workers : {1, 2, 3, 4}) {
    const auto expected = plain_mean(workers);
    in_world(workers, [&](World& world) {
      // Other initial values on every worker: the leader's must win.
      auto net = seeded<TwoLayers>(kSeed + static_cast<std::uint64_t>(world.rank()));
      auto model = data_parallel(net, world);
      loss_of(*model, batch_of(world.rank())).backward();
      expect_close(gradients(*model), expected);
      EXPECT_TRUE(model.identical());
    });
  }
}

TEST(Replica, BitsDependNeitherOnBucketsNorOnTheAlgorithm) {
  std::mutex mutex;
  std::vector<std::vector<torch::Tensor>> results;
  for (const std::size_t bucket : {0UL, 300UL, 25UL << 20}) {
    for (const Algorithm algorithm :
         {Algorithm::kDirect, Algorithm::kHalvingDoubling, Algorithm::kTree}) {
      in_world(4, [&](World& world) {
        auto model = data_parallel(seeded<TwoLayers>(kSeed), world,
                                   {.bucket_bytes = bucket, .algorithm = algorithm});
        loss_of(*model, batch_of(world.rank())).backward();
        const std::lock_guard lock(mutex);
        results.push_back(gradients(*model));
      });
    }
  }
  for (const auto& result : results) {
    for (std::size_t i = 0; i < result.size(); ++i)
      EXPECT_TRUE(torch::equal(result[i], results.front()[i]));
  }
}

TEST(Replica, SparseGradientsAreAveragedAsDenseOnesAre) {
  in_world(2, [&](World& world) {
    const auto gradient_of = [&](bool sparse) {
      auto net =
          seeded<torch::nn::Embedding>(kSeed, torch::nn::EmbeddingOptions(10, 4).sparse(sparse));
      auto model = data_parallel(net, world);
      const auto words = torch::arange(3) + 2 * world.rank();
      for (int pass = 0; pass < 2; ++pass) {
        model.zero_grad();
        model->forward(words).pow(2).sum().backward();
      }
      return net->weight.grad().clone();
    };
    EXPECT_TRUE(torch::equal(gradient_of(true), gradient_of(false)));
  });
}

// A deep model with small buckets: its last layers' gradients travel while its first layers'
// are still computed.
TEST(Replica, TheFirstBucketIsOnTheWireBeforeBackwardHasEnded) {
  in_world(2, [&](World& world) {
    torch::nn::Sequential net;
    for (int i = 0; i < 12; ++i) net->push_back(torch::nn::Linear(128, 128));
    auto model = data_parallel(net, world, {.first_bucket_bytes = 1, .bucket_bytes = 100'000});
    for (int step = 0; step < 3; ++step) {
      model->forward(samples(1, {64, 128})).pow(2).mean().backward();
      const BackwardTimes times = model.last_backward();
      EXPECT_GT(times.buckets, 4U);
      EXPECT_GE(times.launched_before_end, times.buckets / 2);
      EXPECT_LT(times.first_launch, times.last_gradient);
      model.zero_grad();
    }
  });
}

TEST(Replica, OneBucketForAllGoesToTheWireOnlyAtTheEnd) {
  in_world(2, [&](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world,
                               {.first_bucket_bytes = 1 << 30, .bucket_bytes = 1 << 30});
    loss_of(*model, batch_of(world.rank())).backward();
    EXPECT_EQ(model.last_backward().buckets, 1U);
    EXPECT_EQ(model.last_backward().launched_before_end, 0U);
  });
}

TEST(Replica, ModelsThatDifferAreNamedWithTheirRanks) {
  const auto outcomes = outcomes_in_world(3, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed, 8, world.rank() == 1 ? 32 : 16, 4);
    data_parallel(net, world);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text, HasSubstr("first.weight"));
    EXPECT_THAT(outcome.text, HasSubstr("float32 [16, 8] on ranks 0, 2"));
    EXPECT_THAT(outcome.text, HasSubstr("float32 [32, 8] on rank 1"));
    EXPECT_EQ(outcome.ranks, std::vector<int>{1});
  }
}

// As after loading, on one worker alone, what was saved in another order.
TEST(Replica, ParametersThatLieOtherwiseInMemoryAreNamed) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto& weight = net->first->weight;
    if (world.rank() == 0) weight.set_data(weight.detach().t().contiguous().t());
    data_parallel(net, world);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text,
                HasSubstr("first.weight is float32 [16, 8] on rank 1 and float32 [16, 8], strides "
                          "[1, 16] on rank 0"));
  }
}

TEST(Replica, AParameterThatOneWorkerHasNotIsNamed) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    if (world.rank() == 1) net->register_parameter("extra", torch::zeros(3));
    data_parallel(net, world);
  });
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.text,
                HasSubstr("parameter extra is float32 [3] on rank 1 and nothing on rank 0"));
}

TEST(Replica, DifferentOptionsAreNamed) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    data_parallel(seeded<TwoLayers>(kSeed), world,
                  {.bucket_bytes = world.rank() == 0 ? 100U : 200U});
  });
  for (const auto& outcome : outcomes) EXPECT_THAT(outcome.text, HasSubstr("option bucket_bytes"));
}

TEST(Replica, AParameterWithoutAGradientIsAnErrorThatNamesIt) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    net->register_module("forgotten", torch::nn::Linear(2, 2));
    auto model = data_parallel(net, world);
    loss_of(*model, batch_of(world.rank())).backward();
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    EXPECT_THAT(outcome.text, HasSubstr("forgotten.weight, forgotten.bias"));
  }
}

TEST(Replica, MissingGradientsCountAsZeroWhenAsked) {
  in_world(2, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    auto model = data_parallel(net, world, {.missing_gradient = MissingGradient::kZero});
    // Rank 1's loss does not reach the second layer.
    if (world.rank() == 0)
      loss_of(*model, batch_of(0)).backward();
    else
      model->first(batch_of(1)).pow(2).mean().backward();
    auto plain = seeded<TwoLayers>(kSeed);
    ((loss_of(*plain, batch_of(0)) + plain->first(batch_of(1)).pow(2).mean()) / 2).backward();
    expect_close(gradients(*model), gradients(*plain));
  });
}

struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    table = register_parameter("table", torch::randn({5, 4}));
    tied = register_parameter("tied", table);
    frozen = register_parameter("frozen", torch::randn({4}), /*requires_grad=*/false);
    exact = register_parameter("exact", torch::randn({4}, torch::kFloat64));
    half = register_parameter("half", torch::randn({4}).to(torch::kBFloat16));
    turned = register_parameter("turned", torch::randn({4, 3}).t());  // dense, not row-major
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = x.matmul(table.t()).matmul(tied) * frozen + half.to(torch::kFloat32);
    return turned.matmul((y.to(torch::kFloat64) * exact).to(torch::kFloat32).t());
  }
  torch::Tensor table, tied, frozen, exact, half, turned;
};
TORCH_MODULE(OddNet);

TEST(Replica, TiedFrozenMixedAndTransposedParametersWork) {
  in_world(2, [](World& world) {
    auto net = seeded<OddNet>(kSeed + static_cast<std::uint64_t>(world.rank()));
    auto model = data_parallel(net, world);
    const auto x = [](int rank) { return samples(20 + static_cast<std::uint64_t>(rank), {6, 4}); };
    model->forward(x(world.rank())).pow(2).mean().backward();
    auto plain = seeded<OddNet>(kSeed);
    ((plain->forward(x(0)).pow(2).mean() + plain->forward(x(1)).pow(2).mean()) / 2).backward();
    EXPECT_TRUE(torch::equal(model->frozen, plain->frozen));
    EXPECT_LT(largest_difference(model->table.grad(), plain->table.grad()), 1e-5);
    EXPECT_LT(largest_difference(model->exact.grad(), plain->exact.grad()), 1e-6);
    EXPECT_LT(largest_difference(model->turned.grad(), plain->turned.grad()), 1e-5);
    // One rounding to bfloat16 on every side.
    EXPECT_LT(largest_difference(model->half.grad().to(torch::kFloat32),
                                 plain->half.grad().to(torch::kFloat32)),
              0.05);
    EXPECT_EQ(model.parameters().size(), 5U);
  });
}

TEST(Replica, TwoModelsShareAWorldAndABackward) {
  in_world(2, [](World& world) {
    auto a = data_parallel(seeded<TwoLayers>(kSeed), world);
    auto b = data_parallel(seeded<TwoLayers>(kSeed, 4, 16, 4), world);
    b->forward(a->forward(batch_of(world.rank()))).pow(2).mean().backward();
    auto plain_a = seeded<TwoLayers>(kSeed);
    auto plain_b = seeded<TwoLayers>(kSeed, 4, 16, 4);
    const auto plain = [&](int rank) {
      return plain_b->forward(plain_a->forward(batch_of(rank))).pow(2).mean();
    };
    ((plain(0) + plain(1)) / 2).backward();
    expect_close(gradients(*a), gradients(*plain_a));
    expect_close(gradients(*b), gradients(*plain_b));
  });
}

TEST(Replica, GradientsMayBeClearedInAnyWay) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    std::vector<void*> places;
    for (const auto& parameter : model->parameters()) places.push_back(parameter.grad().data_ptr());
    const std::vector<std::function<void()>> ways = {
        [&] { model.zero_grad(); }, [&] { model->zero_grad(true); },
        [&] { model->zero_grad(false); },
        [&] {
          for (auto& parameter : model->parameters()) parameter.mutable_grad() = torch::Tensor();
        },
        [&] {
          for (auto& parameter : model->parameters())
            parameter.mutable_grad() = torch::zeros_like(parameter);
        }};
    for (const auto& clear : ways) {
      clear();
      loss_of(*model, batch_of(world.rank())).backward();
      expect_close(gradients(*model), plain_mean(2));
      for (std::size_t i = 0; i < places.size(); ++i)
        EXPECT_EQ(model->parameters()[i].grad().data_ptr(), places[i]);
    }
  });
}

TEST(Replica, AMinusZeroIsAPlusZeroHoweverGradientsWereCleared) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    for (const bool to_none : {true, false}) {
      model->zero_grad(to_none);
      (model->forward(batch_of(0)).sum() * -0.0F).backward();
      for (const auto& gradient : gradients(*model))
        EXPECT_FALSE(torch::signbit(gradient).any().item<bool>());
    }
  });
}

TEST(Replica, AGraphOfGradientsIsRefused) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    model.zero_grad();
    try {
      loss_of(*model, batch_of(0)).backward({}, true, true);
      FAIL() << "no error";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("create_graph"));
    }
  });
}

TEST(Replica, AModuleThatIsConvertedLaterEndsInAClearErrorOfBackward) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    model->to(torch::kFloat64);
    try {
      loss_of(*model, batch_of(0).to(torch::kFloat64)).backward();
      FAIL() << "no error";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("before data_parallel()"));
    }
  });
}

TEST(Replica, ZeroGradStartsAnew) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      for (const auto& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
      loss_of(*model, batch_of(world.rank())).backward();
      expect_close(gradients(*model), plain_mean(2));
    }
  });
}

TEST(Replica, AStepAfterABrokenPassIsRefused) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    EXPECT_THROW(model->first(batch_of(0)).sum().backward(), BadInput);
    EXPECT_THROW(replica::inside(model).check_attached(), BadInput);
  });
}

TEST(Replica, AWorkerCannotSkipAStepThatTheOthersWaitFor) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    if (world.rank() == 0) {
      loss_of(*model, batch_of(0)).backward();
      return;
    }
    EXPECT_THROW(model->first(batch_of(1)).sum().backward(), BadInput);
    EXPECT_THROW(model.zero_grad(), BadInput);
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kPeerLost);
}

TEST(Replica, ABackwardThatWasBrokenOffCanBeTriedAgain) {
  in_world(1, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world,
                               {.missing_gradient = MissingGradient::kError});
    EXPECT_THROW(model->first(batch_of(0)).sum().backward(), BadInput);  // misses the second layer
    model.zero_grad();
    loss_of(*model, batch_of(0)).backward();
    expect_close(gradients(*model), plain_mean(1));
  });
}

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : linear(register_module("linear", torch::nn::Linear(8, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(Normed);

TEST(Replica, BuffersBecomeTheLeadersAtTheEndOfBackward) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<Normed>(kSeed), world);
    auto plain = seeded<Normed>(kSeed);
    for (int step = 0; step < 3; ++step) {
      // Two forwards before one backward: the synchronisation must not disturb saved tensors.
      auto loss = model->forward(batch_of(world.rank())).pow(3).mean();
      loss = loss + model->forward(batch_of(10 + world.rank())).pow(3).mean();
      loss.backward();
      plain->forward(batch_of(0));
      plain->forward(batch_of(10));
    }
    EXPECT_LT(largest_difference(model->norm->running_mean, plain->norm->running_mean), 1e-6);
    EXPECT_LT(largest_difference(model->norm->running_var, plain->norm->running_var), 1e-6);
    EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 6);
    EXPECT_TRUE(model.identical());
  });
}

TEST(Replica, OwnBuffersStayDifferent) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<Normed>(kSeed), world, {.buffers = BufferSource::kOwn});
    model->forward(batch_of(world.rank())).pow(3).mean().backward();
    EXPECT_FALSE(model.identical());
  });
}

TEST(Replica, AScriptModuleTrainsThroughItsListOfTensors) {
  in_world(2, [](World& world) {
    static std::mutex compiling;
    std::unique_lock lock(compiling);
    torch::jit::Module script("net");
    script.register_parameter("weight",
                              torch::full({3}, 1.0 + world.rank()).set_requires_grad(true), false);
    script.define("def forward(self, x):\n    return (self.weight * x).sum()\n");
    lock.unlock();
    std::vector<NamedTensor> parameters;
    for (const auto& item : script.named_parameters())
      parameters.push_back({item.name, item.value});
    Replica model(world, parameters, {});
    script.forward({torch::full({3}, 2.0 + world.rank())}).toTensor().backward();
    const torch::Tensor weight = script.attr("weight").toTensor();
    EXPECT_TRUE(torch::equal(weight, torch::ones(3)));
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({3}, 2.5)));
  });
}

TEST(Replica, AStockOptimizerWorks) {
  in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto plain = seeded<TwoLayers>(kSeed);
    torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      model.zero_grad();
      loss_of(*model, batch_of(world.rank())).backward();
      optimizer.step();
      plain->zero_grad(false);
      ((loss_of(*plain, batch_of(0)) + loss_of(*plain, batch_of(1))) / 2).backward();
      reference.step();
    }
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_LT(largest_difference(model->parameters()[i], plain->parameters()[i]), 1e-6);
    EXPECT_TRUE(model.identical());
  });
}

TEST(Replica, ALostPeerComesOutOfBackward) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    auto model = data_parallel(seeded<TwoLayers>(kSeed), world);
    if (world.rank() == 1) return;
    loss_of(*model, batch_of(0)).backward();
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kPeerLost);
  EXPECT_EQ(outcomes[0].ranks, std::vector<int>{1});
}

TEST(Replica, AModelWithNothingToTrainIsRefused) {
  in_world(1, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
    EXPECT_THROW(data_parallel(net, world), BadInput);
  });
}

TEST(Replica, UnfreezingLaterIsRefusedByName) {
  in_world(1, [](World& world) {
    auto net = seeded<TwoLayers>(kSeed);
    net->first->bias.requires_grad_(false);
    auto model = data_parallel(net, world);
    net->first->bias.requires_grad_(true);
    try {
      loss_of(*model, batch_of(0)).backward();
      FAIL() << "no error";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("first.bias"));
    }
  });
}

TEST(Mean, IsWeightedAndTheSameEverywhere) {
  in_world(3, [](World& world) {
    EXPECT_DOUBLE_EQ(mean(world, world.rank(), world.rank()), 5.0 / 3);
    EXPECT_DOUBLE_EQ(mean(world, world.rank()), 1.0);
  });
}

// Asks in the hook of a gradient whether its memory is its own.
class AsksForOwnMemory : public torch::autograd::FunctionPostHook {
 public:
  AsksForOwnMemory(torch::Tensor parameter, bool& own)
      : parameter_(std::move(parameter)), own_(own) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    own_ = replica::has_own_memory(parameter_.grad(), inputs[0]);
    return outputs;
  }

 private:
  torch::Tensor parameter_;
  bool& own_;
};

// By parameter, in a backward pass of a loss of them.
std::vector<bool> own_memory(const std::vector<torch::Tensor>& parameters,
                             const std::function<torch::Tensor()>& loss) {
  std::deque<bool> own(parameters.size(), false);
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(parameters[i]));
    accumulators.back()->add_post_hook(std::make_unique<AsksForOwnMemory>(parameters[i], own[i]));
  }
  loss().backward();
  return {own.begin(), own.end()};
}

TEST(Replica, KnowsWhichGradientsHaveTheirMemoryForThemselves) {
  const auto parameter = [] { return torch::randn({8, 8}, torch::requires_grad()); };
  auto net = seeded<TwoLayers>(kSeed, 8, 16, 8);
  const auto x = torch::randn({4, 8});
  const auto layers = net->parameters();
  EXPECT_EQ(own_memory(layers, [&] { return net(x).pow(2).sum(); }), std::vector<bool>(4, true));
  EXPECT_EQ(own_memory(layers, [&] { return net(x).pow(2).sum(); }), std::vector<bool>(4, true))
      << "added to";

  const auto a = parameter();
  const auto b = parameter();
  EXPECT_EQ(own_memory({a, b}, [&] { return (a + b).pow(2).sum(); }), std::vector<bool>(2, true))
      << "LibTorch copies one of them";
  const auto c = parameter();
  const auto d = parameter();
  EXPECT_EQ(own_memory({c, d}, [&] { return (c.view(-1) + d.view(-1)).pow(2).sum(); }),
            std::vector<bool>(2, false))
      << "both gradients are one memory";
  const auto e = parameter();
  const auto f = parameter();
  EXPECT_EQ(own_memory({e, f},
                       [&] {
                         return torch::cat({e, f}).pow(2).sum();
                       }),
            std::vector<bool>(2, false));
  // A gradient that goes to a layer besides, which runs its own backward after.
  const auto g = parameter();
  const auto before = net->forward(torch::randn({8, 8}));
  const auto viewed = g.view({8, 8});
  EXPECT_EQ(own_memory({g}, [&] { return (before + viewed).pow(2).sum(); }),
            std::vector<bool>{false});
}

}  // namespace
}  // namespace lockstep::testing::replicas
