// Several shards per worker of a model with half parameters: their gradients are added in float32 and rounded once, so
// that the number of workers does not show.
#include <gtest/gtest.h>
#include <lockstep/autocast.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/torch/nets.h"

namespace lockstep::testing::half {
namespace {

constexpr std::uint64_t kSeed = 11;

// Two layers whose parameters have types of their own. They compute in the type of the samples, because LibTorch's
// processor code multiplies no float16 matrices before version 2.
struct NetImpl : torch::nn::Module {
  NetImpl(c10::ScalarType first_type, c10::ScalarType second_type)
      : layers(register_module("layers", TwoLayers(64, 144, 10))) {
    layers->first->to(first_type);
    layers->second->to(second_type);
  }
  static torch::Tensor linear(torch::nn::Linear& layer, const torch::Tensor& x) {
    return torch::linear(x, layer->weight.to(x.scalar_type()), layer->bias.to(x.scalar_type()));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return linear(layers->second, torch::relu(linear(layers->first, x)));
  }
  TwoLayers layers;
};
TORCH_MODULE(Net);

struct Types {
  c10::ScalarType first;
  c10::ScalarType second;
  c10::ScalarType samples;
};
constexpr Types kBFloat16 = {torch::kBFloat16, torch::kBFloat16, torch::kBFloat16};
constexpr Types kFloat16 = {torch::kFloat16, torch::kFloat16, torch::kFloat32};
constexpr Types kMixed = {torch::kBFloat16, torch::kFloat32, torch::kFloat32};

torch::Tensor loss_of(Net& net, const Batch& batch, const Types& types) {
  const auto out = net->forward(batch.data.to(types.samples));
  return (out.to(torch::kFloat32) - batch.target).pow(2).mean();
}

// The last batch of an epoch is short, and leaves some of 8 shards empty.
DatasetPtr dataset() {
  return tensor_dataset(samples(1, {43, 64}), samples(2, {43, 10}));
}

struct Training {
  Types types = kBFloat16;
  bool adamw_clipped = false;
  Algorithm algorithm = Algorithm::kAutomatic;
  TrainerOptions options{.steps = 4, .global_batch = 16, .shards = 8, .seed = kSeed};
  TrainerHooks hooks;
  std::function<void(const Batch&)> on_batch;
};

struct Model {
  Net net;
  DataParallel<Net> replica;
  std::shared_ptr<optim::Optimizer> optimizer;
};

Model model_of(World& world, const Training& run) {
  auto net = seeded<Net>(kSeed, run.types.first, run.types.second);
  auto replica = data_parallel(net, world, {.bucket_bytes = 4096, .algorithm = run.algorithm});
  std::shared_ptr<optim::Optimizer> optimizer;
  if (run.adamw_clipped) {
    // Small squares are 0 in float16, which the usual eps does not stand.
    optimizer =
        std::make_shared<optim::AdamW>(replica, optim::AdamWOptions{.lr = 1e-2, .eps = 1e-3});
    optimizer->set_clip_norm(0.05);
  } else {
    optimizer =
        std::make_shared<optim::SGD>(replica, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  }
  return {net, replica, optimizer};
}

std::unique_ptr<Trainer> trainer_of(World& world, Model& model, const Training& run) {
  TrainerParts parts{model.replica, model.net.ptr(), model.optimizer, dataset()};
  parts.loss = [net = model.net, run](const Batch& batch) mutable {
    if (run.on_batch) run.on_batch(batch);
    return loss_of(net, batch, run.types);
  };
  return std::make_unique<Trainer>(world, parts, run.options, run.hooks);
}

std::string train(World& world, Model& model, const Training& run) {
  const TrainingResult result = trainer_of(world, model, run)->run();
  EXPECT_TRUE(result.replicas_identical);
  return result.weights_sha256;
}

std::string hash_of(int workers, const std::string& engine, const Training& run) {
  std::string hash;
  in_world(workers, engine, [&](World& world) {
    Model model = model_of(world, run);
    const std::string mine = train(world, model, run);
    if (world.leader()) hash = mine;
  });
  return hash;
}

// How a sum comes about; in one pass where memory is shared and direct.
struct Way {
  const char* engine;
  Algorithm algorithm;
  bool watched;
};
constexpr Way kWays[] = {{"thread", Algorithm::kDirect, true},
                         {"thread", Algorithm::kHalvingDoubling, false},
                         {"shm", Algorithm::kDirect, false},
                         {"shm", Algorithm::kDirect, true},
                         {"shm", Algorithm::kHalvingDoubling, true}};

class HalfShards : public ::testing::Test {
 protected:
  HalfShards() {
    at::set_num_threads(1);
    at::globalContext().setUserEnabledMkldnn(false);  // knows no bfloat16 on some processors
  }

  // On any number of workers, through messages and in shared memory, watched or not.
  static void expect_one_hash(const Types& types) {
    std::set<std::string> hashes;
    for (const bool adamw_clipped : {false, true}) {
      Training run{.types = types, .adamw_clipped = adamw_clipped};
      const std::string expected = hash_of(1, "thread", run);
      hashes.insert(expected);
      for (const int workers : {1, 2, 3, 4, 8}) {
        for (const Way& way : kWays) {
          run.algorithm = way.algorithm;
          run.options.check_divergence = way.watched;
          EXPECT_EQ(hash_of(workers, way.engine, run), expected)
              << workers << " workers, " << way.engine << ", " << name(way.algorithm) << ", AdamW "
              << adamw_clipped << ", watched " << way.watched;
        }
      }
    }
    EXPECT_EQ(hashes.size(), 2U) << "different jobs have the same hash";
  }
};

TEST_F(HalfShards, BFloat16HasOneHash) {
  expect_one_hash(kBFloat16);
}

TEST_F(HalfShards, Float16HasOneHash) {
  expect_one_hash(kFloat16);
}

TEST_F(HalfShards, AModelOfTwoTypesHasOneHash) {
  expect_one_hash(kMixed);
}

// The definition: shards 0 … n−1 as one tree, whose left side is the largest power of two below n.
torch::Tensor tree_sum(const std::vector<torch::Tensor>& shards, std::size_t first,
                       std::size_t count) {
  if (count == 1) return shards[first];
  std::size_t left = 1;
  while (2 * left < count) left *= 2;
  return tree_sum(shards, first, left) + tree_sum(shards, first + left, count - left);
}

// The averages of one step and the parameters after it, by plain LibTorch.
struct Expected {
  std::vector<torch::Tensor> averages;
  std::vector<torch::Tensor> parameters;
};
Expected first_step(const std::vector<Batch>& batches, const Types& types) {
  auto net = seeded<Net>(kSeed, types.first, types.second);
  std::vector<std::vector<torch::Tensor>> grads(net->parameters().size());
  for (const Batch& batch : batches) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::Tensor();
    loss_of(net, batch, types).backward();
    for (std::size_t i = 0; i < grads.size(); ++i)
      grads[i].push_back(net->parameters()[i].grad().to(torch::kFloat32));
  }
  const float factor = static_cast<float>(1.0 / static_cast<double>(batches.size()));
  Expected expected;
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const torch::Tensor old = net->parameters()[i];
    const auto average = (tree_sum(grads[i], 0, batches.size()) * factor).to(old.scalar_type());
    expected.averages.push_back(average);
    expected.parameters.push_back(
        (old.to(torch::kFloat32) - average.to(torch::kFloat32) * 0.1F).to(old.scalar_type()));
  }
  return expected;
}

void expect_equal(const std::vector<torch::Tensor>& seen, const std::vector<torch::Tensor>& wanted,
                  const std::string& what) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].scalar_type(), wanted[i].scalar_type()) << what << i;
    EXPECT_TRUE(torch::equal(seen[i], wanted[i])) << what << i;
  }
}

TEST_F(HalfShards, TheFirstStepIsThatOfPlainLibTorch) {
  for (const Types& types : {kBFloat16, kFloat16, kMixed}) {
    for (const int shards : {6, 8}) {
      Training run{.types = types};
      run.options.steps = 1;
      run.options.shards = shards;
      run.options.global_batch = 2 * shards;
      std::vector<Batch> batches;
      in_world(1, [&](World& world) {
        Training seen = run;
        seen.on_batch = [&](const Batch& batch) { batches.push_back(batch); };
        Model model = model_of(world, seen);
        train(world, model, seen);
      });
      const Expected expected = first_step(batches, types);
      for (const std::string engine : {"thread", "shm"}) {
        for (const bool hooked : {false, true}) {
          in_world(2, engine, [&](World& world) {
            Model model = model_of(world, run);
            Training own = run;
            bool called = false;
            if (hooked) {
              own.hooks.on_gradients = [&](std::int64_t) {
                std::vector<torch::Tensor> averages;
                for (const auto& parameter : model.net->parameters())
                  averages.push_back(parameter.grad());
                expect_equal(averages, expected.averages, "average ");
                called = true;
              };
            }
            train(world, model, own);
            EXPECT_EQ(called, hooked);
            expect_equal(model.net->parameters(), expected.parameters, "parameter ");
            world.comm().barrier().wait();
          });
        }
      }
    }
  }
}

// What the hook changes is what the update reads.
TEST_F(HalfShards, GradientsThatTheHookClearsChangeNothing) {
  Training run;
  in_world(2, [&](World& world) {
    Model model = model_of(world, run);
    Training own = run;
    own.hooks.on_gradients = [&](std::int64_t) {
      for (auto& parameter : model.net->parameters()) parameter.mutable_grad().zero_();
    };
    train(world, model, own);
    expect_equal(model.net->parameters(),
                 seeded<Net>(kSeed, run.types.first, run.types.second)->parameters(), "parameter ");
  });
}

// Its gradient is the sum of the samples; it remembers the last one in a buffer.
struct OneParameterImpl : torch::nn::Module {
  explicit OneParameterImpl(c10::ScalarType type)
      : value(register_parameter("value", torch::zeros({1}, type))),
        seen(register_buffer("seen", torch::zeros({1}, type))) {}
  torch::Tensor loss(const Batch& batch) {
    seen.copy_(batch.data[-1]);
    return (value.to(torch::kFloat32) * batch.data).sum();
  }
  torch::Tensor value, seen;
};
TORCH_MODULE(OneParameter);

// One shard's gradient is `large`, seven shards' are 1, which `large` swallows in its own type, and the sum of seven
// does not vanish in the average.
void expect_rounded_once(c10::ScalarType type, float large) {
  std::vector<torch::Tensor> shards(8, torch::ones({1}, type));
  shards[3] = torch::full({1}, large, type);
  const auto on_the_way = (tree_sum(shards, 0, 8).to(torch::kFloat32) / 8).to(type);
  for (auto& shard : shards) shard = shard.to(torch::kFloat32);
  const auto once = (tree_sum(shards, 0, 8) / 8).to(type);
  ASSERT_FALSE(torch::equal(on_the_way, once)) << "the values show nothing";
  for (const int workers : {1, 2, 3, 4, 8}) {
    for (const std::string engine : {"thread", "shm"}) {
      in_world(workers, engine, [&](World& world) {
        OneParameter net(type);
        auto replica = data_parallel(net, world);
        auto optimizer = std::make_shared<optim::SGD>(replica, optim::SGDOptions{.lr = 1});
        const auto data = torch::cat({torch::full({1, 1}, large), torch::ones({7, 1})});
        TrainerParts parts{replica, net.ptr(), optimizer, tensor_dataset(data, data)};
        parts.loss = [net](const Batch& batch) mutable { return net->loss(batch); };
        Trainer trainer(
            world, parts,
            {.steps = 1, .global_batch = 8, .shards = 8, .buffers = ShardBufferRule::kMean});
        trainer.run();
        EXPECT_TRUE(torch::equal(net->value, -once)) << workers << engine << net->value;
        EXPECT_TRUE(torch::equal(net->seen, once)) << workers << engine << net->seen;
        world.comm().barrier().wait();
      });
    }
  }
}

TEST_F(HalfShards, SumsAndMeansOfBuffersAreRoundedOnce) {
  expect_rounded_once(torch::kBFloat16, 256);
  expect_rounded_once(torch::kFloat16, 2048);
}

// One parameter in a loop of its user's: the gradient of every worker is `slope`.
struct Slope {
  Slope(World& world, c10::ScalarType type, double lr)
      : net(type), replica(data_parallel(net, world)), optimizer(replica, {.lr = lr}) {}
  torch::Tensor loss(double slope) const { return (net->value.to(torch::kFloat32) * slope).sum(); }
  float value() const { return net->value.item<float>(); }

  OneParameter net;
  DataParallel<OneParameter> replica;
  optim::SGD optimizer;
};

// A change that is less than half a bit of the parameter is not lost. What the program writes counts.
TEST_F(HalfShards, SmallChangesAddUpInFloat32Masters) {
  for (const std::string engine : {"thread", "shm"}) {
    in_world(2, engine, [](World& world) {
      Slope one(world, torch::kBFloat16, 0.5);
      const auto write = [&](float value) {
        torch::NoGradGuard no_grad;
        one.net->value.fill_(value);
      };
      const auto step = [&] {
        one.optimizer.zero_grad();
        one.loss(1).backward();
        one.optimizer.step();
      };
      write(256);
      for (int i = 0; i < 4; ++i) step();
      EXPECT_EQ(one.value(), 254);
      const auto state = one.optimizer.state();
      ASSERT_EQ(state.size(), 1U);
      EXPECT_EQ(state[0].name, "master/value");
      EXPECT_EQ(state[0].tensor.item<float>(), 254);
      write(100);
      step();
      EXPECT_EQ(one.value(), 99.5F);
      EXPECT_TRUE(one.replica.identical());
    });
  }
}

TEST_F(HalfShards, AScalerKeepsFloat16GradientsThatWouldVanish) {
  for (const bool clipped : {false, true}) {
    in_world(2, "shm", [&](World& world) {
      Slope plain(world, torch::kFloat16, 1e4);
      Slope scaled(world, torch::kFloat16, 1e4);
      if (clipped) scaled.optimizer.set_clip_norm(1);
      plain.loss(1e-8).backward();
      plain.optimizer.step();
      EXPECT_EQ(plain.value(), 0);
      GradScaler scaler;
      scaler.scale(scaled.loss(1e-8)).backward();
      EXPECT_TRUE(scaler.step(scaled.optimizer));
      EXPECT_NEAR(scaled.value(), -1e-4, 1e-7);
    });
  }
}

// With one shard, held weights are what float32 weights that began with the same values are rounded to.
TEST_F(HalfShards, HeldWeightsHaveTheBitsOfAutocast) {
  in_world(1, [](World& world) {
    auto held = seeded<TwoLayers>(kSeed);
    EXPECT_EQ(hold_weights(*held, torch::kBFloat16), 4U);
    auto cast = seeded<TwoLayers>(kSeed);
    cast->to(torch::kBFloat16);
    cast->to(torch::kFloat32);
    const auto train = [&](TwoLayers& net) {
      auto model = data_parallel(net, world);
      optim::AdamW optimizer(model, {.lr = 1e-2});
      optimizer.set_clip_norm(0.05);
      for (std::uint64_t step = 0; step < 5; ++step) {
        torch::Tensor loss;
        {
          const Autocast half(torch::kCPU, torch::kBFloat16);
          loss = net(samples(step, {4, 8})).to(torch::kFloat32).pow(2).mean();
        }
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
      }
    };
    train(held);
    train(cast);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(held->parameters()[i].scalar_type(), torch::kBFloat16);
      EXPECT_TRUE(torch::equal(held->parameters()[i], cast->parameters()[i].to(torch::kBFloat16)));
    }
  });
}

// The same model in one Trainer after another, and then in a loop of its user's.
TEST_F(HalfShards, TheModelIsTheUsersAfterATrainer) {
  for (const std::string engine : {"thread", "shm"}) {
    std::set<std::string> hashes;
    for (const int workers : {1, 2}) {
      in_world(workers, engine, [&](World& world) {
        Training run;
        Model model = model_of(world, run);
        auto first = trainer_of(world, model, run);
        run.options.shards = 2;
        auto second = trainer_of(world, model, run);
        first->run();
        const std::string hash = second->run().weights_sha256;
        if (world.leader()) hashes.insert(hash);
        for (int step = 0; step < 2; ++step) {
          model.optimizer->zero_grad();
          const auto before = model.net->layers->second->bias.detach().clone();
          const Batch batch{samples(3, {4, 64}), samples(4, {4, 10}), 4};
          loss_of(model.net, batch, run.types).backward();
          const auto& grad = model.net->layers->second->bias.grad();
          EXPECT_EQ(grad.scalar_type(), torch::kBFloat16);
          auto plain = seeded<Net>(kSeed, run.types.first, run.types.second);
          {
            torch::NoGradGuard no_grad;
            for (std::size_t i = 0; i < plain->parameters().size(); ++i)
              plain->parameters()[i].copy_(model.net->parameters()[i]);
          }
          loss_of(plain, batch, run.types).backward();
          EXPECT_TRUE(torch::equal(grad, plain->layers->second->bias.grad()));
          world.comm().barrier().wait();
          model.optimizer->step();
          EXPECT_FALSE(torch::equal(before, model.net->layers->second->bias));
        }
        EXPECT_TRUE(model.replica.identical());
      });
    }
    EXPECT_EQ(hashes.size(), 1U) << engine;
  }
}

}  // namespace
}  // namespace lockstep::testing::half
