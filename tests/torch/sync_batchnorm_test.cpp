// Batch norms over all workers beside plain LibTorch's on one large batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>
#include <lockstep/sync_batchnorm.h>

#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/torch/loops.h"

namespace lockstep::testing::norm_cases {
namespace {

using ::testing::HasSubstr;

// How many samples each worker has.
using Parts = std::vector<std::int64_t>;

// A batch norm for so many dimensions; 0: for any.
struct Net : torch::nn::Module {
  Net(int dimensions, const torch::nn::BatchNormOptions& options) : dimensions_(dimensions) {
    if (dimensions == 0) any = register_module("any", SyncBatchNorm(options));
    if (dimensions == 1) one = register_module("one", torch::nn::BatchNorm1d(options));
    if (dimensions == 2) two = register_module("two", torch::nn::BatchNorm2d(options));
    if (dimensions == 3) three = register_module("three", torch::nn::BatchNorm3d(options));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (dimensions_ == 0) return any->forward(x);
    if (dimensions_ == 1) return one->forward(x);
    return dimensions_ == 2 ? two->forward(x) : three->forward(x);
  }
  SyncBatchNorm any{nullptr};
  torch::nn::BatchNorm1d one{nullptr};
  torch::nn::BatchNorm2d two{nullptr};
  torch::nn::BatchNorm3d three{nullptr};

 private:
  int dimensions_;
};

struct Case {
  std::string what;
  std::vector<std::int64_t> shape;  // of one sample, channels first
  int dimensions = 2;
  torch::nn::BatchNormOptions options;
  torch::ScalarType type = torch::kFloat64;
  int passes = 1;  // through the same layer, one after the other
  bool channels_last = false;
};

std::vector<Case> cases() {
  using Options = torch::nn::BatchNormOptions;
  Options cumulative(4);
  using Momentum = std::remove_cvref_t<decltype(cumulative.momentum())>;
  cumulative.momentum(Momentum());
  return {{"1d", {5}, 1, Options(5)},
          {"1d of sequences", {5, 3}, 1, Options(5).momentum(0.3)},
          {"2d", {4, 3, 3}, 2, Options(4)},
          {"2d, channels last", {4, 3, 3}, 2, Options(4), torch::kFloat64, 1, true},
          {"3d", {3, 2, 2, 2}, 3, Options(3).eps(1e-3)},
          {"without weights", {4, 3, 3}, 2, Options(4).affine(false)},
          {"without running statistics", {4, 3, 3}, 2, Options(4).track_running_stats(false)},
          {"cumulative", {4, 3, 3}, 2, cumulative, torch::kFloat64, 2},
          {"used three times", {4, 3, 3}, 2, Options(4), torch::kFloat64, 3},
          {"float32", {4, 8, 8}, 2, Options(4), torch::kFloat32}};
}

torch::Tensor samples_of(const Case& c, std::int64_t count, double offset) {
  std::vector<std::int64_t> shape{count};
  shape.insert(shape.end(), c.shape.begin(), c.shape.end());
  torch::Tensor x =
      torch::linspace(-2, 3, count * c10::multiply_integers(c.shape), torch::kFloat64);
  x = (x * 7.3 + offset).sin().reshape(shape) * 2 + offset;
  return x.to(c.type);
}

using Results = std::map<std::string, torch::Tensor>;

// A pass over some of the samples, with the gradients that it leaves.
Results pass(const Case& c, Net& net, const torch::Tensor& x, const torch::Tensor& factors) {
  torch::Tensor input = (c.channels_last ? x.contiguous(torch::MemoryFormat::ChannelsLast) : x)
                            .clone()
                            .requires_grad_();
  torch::Tensor output = input;
  for (int i = 0; i < c.passes; ++i) output = net.forward(output * (1 + i));
  (output * factors).sum().backward();
  Results all{{"output", output.detach()}, {"input gradient", input.grad()}};
  for (const auto& item : net.named_parameters())
    all["gradient of " + item.key()] = item.value().grad();
  for (const auto& item : net.named_buffers()) all[item.key()] = item.value();
  return all;
}

std::shared_ptr<Net> make_net(const Case& c) {
  auto net = std::make_shared<Net>(c.dimensions, c.options);
  net->to(c.type);
  torch::NoGradGuard no_grad;
  for (torch::Tensor& p : net->parameters())
    p.copy_(torch::linspace(0.5, 1.5, p.numel(), torch::kFloat64));
  return net;
}

// Outputs and gradients of inputs, one worker after the other; gradients of weights, summed;
// running statistics, which must be the same everywhere.
Results on_workers(const Case& c, const Parts& parts, const std::string& engine) {
  std::int64_t total = 0;
  for (const std::int64_t part : parts) total += part;
  const torch::Tensor x = samples_of(c, total, 1);
  const torch::Tensor factors = samples_of(c, total, 0.3);
  std::vector<Results> each(parts.size());
  in_world(static_cast<int>(parts.size()), engine, [&](World& world) {
    auto net = make_net(c);
    EXPECT_EQ(convert_sync_batchnorm(*net, world), 1U);
    const auto rank = static_cast<std::size_t>(world.rank());
    std::int64_t first = 0;
    for (std::size_t r = 0; r < rank; ++r) first += parts[r];
    each[rank] =
        pass(c, *net, x.narrow(0, first, parts[rank]), factors.narrow(0, first, parts[rank]));
  });
  Results all = each[0];
  for (std::size_t r = 1; r < each.size(); ++r) {
    for (auto& [name, tensor] : all) {
      if (name == "output" || name == "input gradient") {
        tensor = torch::cat({tensor, each[r][name]});
      } else if (name.starts_with("gradient of")) {
        tensor = tensor + each[r][name];
      } else {
        EXPECT_TRUE(torch::equal(tensor, each[r][name])) << name << " of rank " << r;
      }
    }
  }
  return all;
}

void expect_close(const Results& ours, const Results& theirs, torch::ScalarType type) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : ours) {
    const torch::Tensor expected = theirs.at(name).to(torch::kFloat64);
    const torch::Tensor off = tensor.to(torch::kFloat64) - expected;
    if (type == torch::kFloat64) {
      EXPECT_LE(off.abs().max().item<double>(), 1e-12 * (1 + expected.abs().max().item<double>()))
          << name;
    } else {
      EXPECT_LE(off.norm().item<double>(), 1e-6 * expected.norm().item<double>()) << name;
    }
  }
}

template <typename Body>
void expect_refused(const Body& body, const std::string& words) {
  try {
    body();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(SyncBatchNorm, IsTheBatchNormOfOneLargeBatch) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.what);
    for (const Parts& parts : {Parts{9}, Parts{4, 5}, Parts{2, 5, 2}, Parts{6, 0, 3}}) {
      SCOPED_TRACE(::testing::PrintToString(parts));
      auto net = make_net(c);
      const Results expected = pass(c, *net, samples_of(c, 9, 1), samples_of(c, 9, 0.3));
      expect_close(on_workers(c, parts, "shm"), expected, c.type);
    }
  }
}

// The layer that has the name, in place of a converted one.
TEST(SyncBatchNorm, AsALayerHasTheBitsOfAConvertedOne) {
  for (Case c : cases()) {
    SCOPED_TRACE(c.what);
    const Results converted = on_workers(c, {4, 5}, "thread");
    const std::string name = std::vector<std::string>{"one", "two", "three"}.at(
        static_cast<std::size_t>(c.dimensions - 1));
    c.dimensions = 0;
    const Results own = on_workers(c, {4, 5}, "thread");
    ASSERT_EQ(own.size(), converted.size());
    for (const auto& [key, tensor] : converted) {
      std::string its = key;
      if (const auto at = its.find(name + "."); at != std::string::npos)
        its.replace(at, name.size(), "any");
      ASSERT_TRUE(own.contains(its)) << its;
      EXPECT_TRUE(torch::equal(own.at(its), tensor)) << its;
    }
  }
}

TEST(SyncBatchNorm, AsALayerTakesOneValuePerChannel) {
  Case c{"1d", {5}, 1, torch::nn::BatchNormOptions(5)};
  auto plain = make_net(c);
  const Results expected = pass(c, *plain, samples_of(c, 3, 1), samples_of(c, 3, 0.3));
  c.dimensions = 0;
  const Results found = on_workers(c, {1, 1, 1}, "shm");
  for (const std::string name : {"output", "input gradient"}) {
    const torch::Tensor off = found.at(name) - expected.at(name);
    EXPECT_LE(off.abs().max().item<double>(), 1e-12) << name;
  }
}

TEST(SyncBatchNorm, AsALayerSaysWhatItNeeds) {
  SyncBatchNorm layer(4);
  expect_refused(
      [&] {
        layer->forward(torch::ones({2, 4, 3}));
      },
      "call lockstep::convert_sync_batchnorm() with the module and the world first");
  World alone = World::over(connect_alone());
  EXPECT_EQ(convert_sync_batchnorm(*layer, alone), 1U);
  expect_refused(
      [&] {
        layer->forward(torch::ones({2, 3}));
      },
      "a SyncBatchNorm of 4 channels got an input float32 [2, 3]");
  expect_refused([&] { layer->forward(torch::ones({4})); }, "its second dimension");
  layer->eval();
  auto plain = torch::nn::BatchNorm2d(4);
  plain->eval();
  const torch::Tensor x = samples(3, {2, 4, 3, 3});
  EXPECT_TRUE(torch::equal(layer->forward(x), plain->forward(x)));
  std::ostringstream text;
  text << layer;
  EXPECT_THAT(text.str(), HasSubstr("lockstep::SyncBatchNorm(4, eps=1e-05, momentum=0.1"));
  std::stringstream archive;
  layer->weight.data().fill_(3);
  torch::save(layer, archive);
  torch::load(plain, archive);
  EXPECT_TRUE(torch::equal(plain->weight, layer->weight));
}

TEST(SyncBatchNorm, HasTheSameBitsOverEveryEngine) {
  const Case c = cases().back();
  const Results expected = on_workers(c, {4, 5}, "thread");
  for (const std::string& engine : cpu_engines()) {
    for (const auto& [name, tensor] : on_workers(c, {4, 5}, engine))
      EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name << ", " << engine;
  }
}

TEST(SyncBatchNorm, InEvalIsTheLayersOwn) {
  const Case c = cases()[2];
  in_world(2, "thread", [&](World& world) {
    auto net = make_net(c);
    convert_sync_batchnorm(*net, world);
    net->eval();
    const torch::Tensor x = samples_of(c, 3 + world.rank(), 1);  // nobody waits for anybody
    const torch::Tensor y = world.leader() ? net->forward(x) : torch::Tensor();
    auto plain = make_net(c);
    plain->eval();
    if (y.defined()) {
      EXPECT_TRUE(torch::equal(y, plain->forward(x)));
    }
  });
}

// Layers of the same process that nobody converted stay as they are.
TEST(SyncBatchNorm, LeavesOtherLayersAlone) {
  const Case c = cases()[2];
  in_world(2, "thread", [&](World& world) {
    auto net = make_net(c);
    convert_sync_batchnorm(*net, world);
    auto plain = make_net(c);
    const torch::Tensor x = samples_of(c, 4, world.rank());
    const torch::Tensor y = plain->forward(x);
    EXPECT_LE(y.mean().item<double>(), 2);
    EXPECT_LE((plain->two->running_mean - 0.1 * x.mean({0, 2, 3})).abs().max().item<double>(),
              1e-15);
  });
}

// A classifier in the drop-in loop, with uneven batches, beside one worker with all samples.
struct Classifier : torch::nn::Module {
  Classifier() {
    register_module("layers", layers);
    to(torch::kFloat64);
    // Not from the generator: workers are threads, and share it.
    torch::NoGradGuard no_grad;
    for (torch::Tensor& p : parameters())
      p.copy_((torch::arange(p.numel(), torch::kFloat64) * 1.7).cos().view_as(p) / 3 + 0.2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).bias(false)),
                               torch::nn::BatchNorm2d(4),
                               torch::nn::ReLU(),
                               torch::nn::Flatten(),
                               torch::nn::Linear(4 * 16, 6),
                               torch::nn::BatchNorm1d(6)};
};

std::map<std::string, torch::Tensor> train(World& world, const Parts& parts) {
  auto net = std::make_shared<Classifier>();
  EXPECT_EQ(convert_sync_batchnorm(*net, world), 2U);
  auto model = data_parallel(net, world);
  lockstep::optim::SGD optimizer(model, {.lr = 0.05, .momentum = 0.9});
  std::int64_t first = 0;
  for (int r = 0; r < world.rank(); ++r) first += parts[static_cast<std::size_t>(r)];
  const std::int64_t count = parts[static_cast<std::size_t>(world.rank())];
  for (int step = 0; step < 4; ++step) {
    const Case images{"", {1, 6, 6}, 2, torch::nn::BatchNormOptions(1)};
    const torch::Tensor x = samples_of(images, 8, step).narrow(0, first, count);
    const torch::Tensor target = (torch::arange(8) % 6).narrow(0, first, count);
    optimizer.zero_grad();
    backward(torch::nn::functional::cross_entropy(model->forward(x), target), count);
    optimizer.step();
  }
  std::map<std::string, torch::Tensor> all;
  for (const auto& item : net->named_parameters()) all[item.key()] = item.value().detach().clone();
  for (const auto& item : net->named_buffers()) all[item.key()] = item.value().clone();
  return all;
}

TEST(SyncBatchNorm, TrainsAsOneWorkerWithAllSamples) {
  World alone = World::over(connect_alone());
  const auto expected = train(alone, {8});
  for (const Parts& parts : {Parts{4, 4}, Parts{3, 5}, Parts{2, 4, 2}, Parts{5, 0, 3}}) {
    in_world(static_cast<int>(parts.size()), "shm", [&](World& world) {
      for (const auto& [name, tensor] : train(world, parts))
        EXPECT_TRUE(torch::allclose(tensor, expected.at(name), 1e-9, 1e-11)) << name;
    });
  }
}

TEST(SyncBatchNorm, WorkersThatDoNotDoTheSameGetAMismatch) {
  const Case c = cases()[2];
  in_world(2, "thread", [&](World& world) {
    auto net =
        std::make_shared<Net>(2, torch::nn::BatchNormOptions(4).eps(world.leader() ? 1e-5 : 1e-3));
    EXPECT_THROW(convert_sync_batchnorm(*net, world), Mismatch);
  });
  const auto reversed = [&](World& world) {
    auto net = make_net(c);
    convert_sync_batchnorm(*net, world);
    const torch::Tensor x = samples_of(c, 4, 1).requires_grad_();
    const std::vector<torch::Tensor> losses = {net->forward(x).pow(2).sum(),
                                               net->forward(x * 2).pow(3).sum()};
    losses[static_cast<std::size_t>(world.rank())].backward();
  };
  EXPECT_THROW(in_world(2, "thread", reversed), Mismatch);
}

// How two workers end whose loops differ.
std::vector<Outcome> outcomes_of(const std::string& engine, std::chrono::milliseconds timeout,
                                 const std::function<void(World&)>& body) {
  return run_workers({engine, 2, timeout}, [&](Comm& comm) {
    World world = World::over(comm.channel(1));
    body(world);
  });
}

// What the leader does in another way than the other worker.
enum class Leaders { kNoConversion, kLateNoConversion, kEval, kForwardTwice, kNoBackward };

void differ_in(World& world, Leaders leaders) {
  const auto leader_does = [&](Leaders what) { return world.leader() && leaders == what; };
  auto net = std::make_shared<Classifier>();
  const bool late = leaders == Leaders::kLateNoConversion;
  if (!late && !leader_does(Leaders::kNoConversion)) convert_sync_batchnorm(*net, world);
  auto model = data_parallel(net, world);
  if (late && !leader_does(leaders)) convert_sync_batchnorm(*net, world);
  if (leader_does(Leaders::kEval)) net->eval();
  const Case images{"", {1, 6, 6}, 2, torch::nn::BatchNormOptions(1)};
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    if (leader_does(Leaders::kForwardTwice)) model->forward(samples_of(images, 3, step));
    const torch::Tensor loss = model->forward(samples_of(images, 4, step)).pow(2).sum();
    if (!leader_does(Leaders::kNoBackward)) loss.backward();
  }
}

TEST(SyncBatchNorm, WorkersThatMeetInDifferentPlacesGetAMismatchWithTheirNames) {
  const std::vector<std::tuple<Leaders, std::string, std::string>> cases = {
      {Leaders::kNoConversion, "convert_sync_batchnorm()", "data_parallel()"},
      {Leaders::kLateNoConversion, "convert_sync_batchnorm()", "backward()"},
      {Leaders::kEval, "SyncBatchNorm 0", "backward()"},
      {Leaders::kForwardTwice, "SyncBatchNorm 0", "SyncBatchNorm 1 back"},
      {Leaders::kNoBackward, "SyncBatchNorm 0", "SyncBatchNorm 1 back"}};
  for (const std::string& engine : cpu_engines()) {
    for (const auto& [leaders, one, other] : cases) {
      const auto outcomes = outcomes_of(engine, std::chrono::seconds(5),
                                        [&](World& world) { differ_in(world, leaders); });
      for (const Outcome& outcome : outcomes) {
        ASSERT_EQ(outcome.kind, ErrorKind::kMismatch) << engine << ": " << outcome.text;
        EXPECT_THAT(outcome.text, HasSubstr(one));
        EXPECT_THAT(outcome.text, HasSubstr(other));
      }
      if (leaders == Leaders::kEval) {
        EXPECT_THAT(outcomes[1].text, HasSubstr("SyncBatchNorm 0 is the layer layers.1"));
      }
    }
  }
}

TEST(SyncBatchNorm, SaysInWhichLayerItHasWaited) {
  std::promise<void> other_has_ended;
  const auto outcomes = outcomes_of("thread", std::chrono::milliseconds(300), [&](World& world) {
    auto net = std::make_shared<Classifier>();
    convert_sync_batchnorm(*net, world);
    if (world.leader()) return other_has_ended.get_future().wait();
    try {
      net->forward(samples_of({"", {1, 6, 6}, 2, torch::nn::BatchNormOptions(1)}, 4, 1));
    } catch (const Error&) {
      other_has_ended.set_value();
      throw;
    }
  });
  EXPECT_EQ(outcomes[1].kind, ErrorKind::kTimeout);
  EXPECT_THAT(outcomes[1].text, HasSubstr("SyncBatchNorm 0 is the layer layers.1"));
}

// Every worker knows the counts of all groups.
TEST(SyncBatchNorm, OneGroupWithTooFewValuesEndsAllWorkers) {
  std::mutex mutex;
  std::vector<std::string> texts;
  in_world(4, "thread", [&](World& world) {
    torch::nn::BatchNorm1d layer(3);
    convert_sync_batchnorm(*layer, world, {.group = 2});
    const std::vector<std::int64_t> counts{4, 4, 1, 0};
    const auto x = torch::ones({counts[static_cast<std::size_t>(world.rank())], 3, 1});
    try {
      at::batch_norm(x, layer->weight, layer->bias, layer->running_mean, layer->running_var, true,
                     0.1, 1e-5, false);
    } catch (const BadInput& error) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(error.what());
    }
  });
  EXPECT_EQ(texts.size(), 4U);
  for (const std::string& text : texts) EXPECT_THAT(text, HasSubstr("1 values of a channel"));
}

// Weights, inputs and running statistics of a half type; computed in float32.
TEST(SyncBatchNorm, TakesModelsOfAHalfType) {
  in_world(2, "thread", [&](World& world) {
    torch::nn::BatchNorm2d layer(4);
    torch::nn::BatchNorm2d plain(4);
    layer->to(torch::kBFloat16);
    convert_sync_batchnorm(*layer, world);
    const auto all = samples(1, {6, 4, 3, 3}).to(torch::kBFloat16);
    const auto factors = samples(2, {6, 4, 3, 3}).to(torch::kBFloat16);
    const auto half = [&](const torch::Tensor& of) { return of.chunk(2)[world.rank()]; };
    const auto x = half(all).clone().requires_grad_();
    const auto whole = all.to(torch::kFloat32).requires_grad_();
    const auto out = layer(x);
    (out * half(factors)).sum().backward();
    const auto expected = plain(whole);
    (expected * factors.to(torch::kFloat32)).sum().backward();
    EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
    EXPECT_LT(largest_difference(out.to(torch::kFloat32), half(expected)), 2e-2);
    EXPECT_LT(largest_difference(x.grad().to(torch::kFloat32), half(whole.grad())), 2e-2);
    EXPECT_LT(largest_difference(layer->running_var.to(torch::kFloat32), plain->running_var), 1e-2);
  });
}

TEST(SyncBatchNorm, RefusesWhatItCannotDo) {
  World alone = World::over(connect_alone());
  const auto bare = torch::nn::BatchNormOptions(4).affine(false).track_running_stats(false);
  expect_refused([&] { convert_sync_batchnorm(*std::make_shared<Net>(2, bare), alone); },
                 "the batch norm two has neither weights nor running statistics");
  const Case c = cases()[2];
  auto net = make_net(c);
  convert_sync_batchnorm(*net, alone);
  expect_refused([&] { net->forward(samples_of(c, 0, 1)); }, "have 0 values of a channel");
  const torch::Tensor x = samples_of(c, 3, 1).requires_grad_();
  const torch::Tensor loss = net->forward(x).pow(3).sum();
  expect_refused([&] { torch::autograd::grad({loss}, {x}, {}, true, true); },
                 "create_graph) do not go through a SyncBatchNorm");
}

}  // namespace
}  // namespace lockstep::testing::norm_cases
