// GradScaler: PyTorch's numbers; an overflow in one shard skips the update on every worker; the same bits on any number of
// workers, with overflows and across a checkpoint.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/autocast.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/step.h>
#include <lockstep/trainer.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/python.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"
#include "tests/torch/own_process.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing::loops {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename Body>
std::string refusal_of(const Body& body) {
  try {
    body();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

// One weight vector, whose gradient is what a loss multiplies it with.
struct VectorImpl : torch::nn::Module {
  explicit VectorImpl(torch::ScalarType type = torch::kFloat32)
      : weight(register_parameter("weight", torch::ones({3}, type))) {}
  torch::Tensor forward(const torch::Tensor& factor) { return (weight * factor).sum(); }
  torch::Tensor weight;
};
TORCH_MODULE(Vector);

torch::Tensor factor(bool overflows) {
  return torch::tensor({1.0F, overflows ? kInfinity : 2.0F, 3.0F});
}

// By PyTorch: scale, growth tracker, whether the step was skipped, and the first weight after it.
std::vector<std::vector<double>> by_pytorch(const std::string& python,
                                            const GradScalerOptions& options,
                                            const std::string& series) {
  const Folder folder;
  const std::string command =
      fmt::format("{} '" SCALER_SCRIPT "' {} {} {} {} '{}' > '{}' 2>&1", python, options.init_scale,
                  options.growth_factor, options.backoff_factor, options.growth_interval, series,
                  folder / "out");
  EXPECT_EQ(std::system(command.c_str()), 0) << contents(folder / "out");
  std::vector<std::vector<double>> steps;
  std::istringstream lines(contents(folder / "out"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    steps.emplace_back();
    for (double word = 0; words >> word;) steps.back().push_back(word);
  }
  return steps;
}

TEST(GradScalerNumbers, AreThoseOfPyTorch) {
  const std::string python = python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no PyTorch to compare with: make deps-test installs it";
  const std::string series = "..o....oo.....o.";
  for (const GradScalerOptions& options :
       {GradScalerOptions{.growth_interval = 3}, GradScalerOptions{.init_scale = 1000,
                                                 .growth_factor = 1.5,
                                                 .backoff_factor = 0.3,
                                                 .growth_interval = 2}}) {
    const auto theirs = by_pytorch(python, options, series);
    ASSERT_EQ(theirs.size(), series.size());
    World world = World::over(connect_alone());
    Vector net;
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.25});
    GradScaler scaler(options);
    for (std::size_t i = 0; i < series.size(); ++i) {
      optimizer.zero_grad();
      scaler.scale(net(factor(series[i] == 'o'))).backward();
      const bool stepped = scaler.step(optimizer);
      scaler.update();
      EXPECT_EQ(scaler.scale(), theirs[i][0]) << "step " << i;
      EXPECT_EQ(scaler.state().growth_tracker, theirs[i][1]) << "step " << i;
      EXPECT_EQ(stepped ? 0 : 1, theirs[i][2]) << "step " << i;
      EXPECT_NEAR(net->weight[0].item<double>(), theirs[i][3], 1e-6) << "step " << i;
    }
  }
}

// How a program of the drop-in loop uses its scaler.
enum class Use { kNone, kStep, kUnscale, kStock };

std::vector<torch::Tensor> dropped_in(World& world, Use use, double clip_norm) {
  auto net = seeded<TwoLayers>(kSeed);
  auto model = data_parallel(net, world);
  GradScaler scaler({.growth_interval = 2, .enabled = use != Use::kNone});
  optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
  torch::optim::SGD stock(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  optimizer.set_clip_norm(clip_norm);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const auto x = samples(10 * step + static_cast<std::uint64_t>(world.rank()), {4, 8});
    auto loss = net(x).pow(2).mean();
    if (step == 3 && world.rank() == world.size() - 1 && use != Use::kNone) loss = loss * kInfinity;
    if (step == 3 && use == Use::kNone) continue;
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    if (use == Use::kUnscale) scaler.unscale(optimizer);
    const bool stepped = use == Use::kStock ? scaler.step(stock) : scaler.step(optimizer);
    EXPECT_EQ(stepped, step != 3 || use == Use::kNone);
    scaler.update();
  }
  EXPECT_EQ(optimizer.steps(), use == Use::kStock ? 0 : 4);
  EXPECT_EQ(scaler.scale(), use == Use::kNone ? 1 : 65536);  // grown, and backed off
  EXPECT_TRUE(model.identical());
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

// Powers of two change no bits. An overflow on one worker is a step that nobody makes.
TEST(GradScalerDropIn, GivesTheBitsOfATrainingWithoutItAndSkipsEverywhere) {
  for (const std::string engine : {"thread", "shm"}) {
    for (const int workers : {1, 3}) {
      for (const double clip_norm : {0.0, 0.05}) {
        in_world(workers, engine, [&](World& world) {
          const auto plain = dropped_in(world, Use::kNone, clip_norm);
          for (const Use use : {Use::kStep, Use::kUnscale, Use::kStock}) {
            if (use == Use::kStock && clip_norm > 0) continue;
            const auto scaled = dropped_in(world, use, clip_norm);
            for (std::size_t i = 0; i < plain.size(); ++i) {
              EXPECT_TRUE(use == Use::kStock ? torch::allclose(scaled[i], plain[i])
                                             : torch::equal(scaled[i], plain[i]))
                  << engine << " " << workers << " workers, clipping " << clip_norm << ", use "
                  << static_cast<int>(use);
            }
          }
        });
      }
    }
  }
}

TEST(GradScalerDropIn, SkipsOnlyTheOptimizerWhoseGradientsOverflow) {
  in_world(2, [](World& world) {
    Vector one;
    Vector other;
    auto first = data_parallel(one, world);
    auto second = data_parallel(other, world);
    optim::AdamW of_one(first);
    optim::AdamW of_other(second);
    GradScaler scaler;
    scaler.scale(one(factor(world.rank() == 1)) + other(factor(false))).backward();
    EXPECT_FALSE(scaler.step(of_one));
    EXPECT_TRUE(scaler.step(of_other));
    scaler.update();
    EXPECT_EQ(scaler.scale(), 32768);
    EXPECT_EQ(of_one.steps(), 0);
    EXPECT_EQ(of_other.steps(), 1);
    EXPECT_TRUE(torch::equal(one->weight, torch::ones({3})));
    for (const auto& [name, tensor] : of_one.state())
      EXPECT_EQ(tensor.abs().max().item<float>(), 0);
  });
}

TEST(GradScalerDropIn, WorkersWithDifferentScalesAreTold) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    Vector net;
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.1});
    GradScaler scaler({.init_scale = world.leader() ? 2.0 : 4.0});
    scaler.scale(net(factor(false))).backward();
    scaler.step(optimizer);
  });
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.text, HasSubstr("their losses were scaled by other numbers"));
}

TEST(GradScalerDropIn, RefusesWhatMakesNoSense) {
  const double nan = std::nan("");
  for (const GradScalerOptions& wrong :
       {GradScalerOptions{.init_scale = 0}, GradScalerOptions{.init_scale = nan},
        GradScalerOptions{.init_scale = 1e40}, GradScalerOptions{.growth_factor = 1},
        GradScalerOptions{.growth_factor = nan}, GradScalerOptions{.backoff_factor = 1},
        GradScalerOptions{.backoff_factor = -1}, GradScalerOptions{.backoff_factor = nan},
        GradScalerOptions{.growth_interval = 0}})
    EXPECT_THAT(refusal_of([&] { GradScaler scaler(wrong); }), HasSubstr("it must be"));
  World world = World::over(connect_alone());
  Vector net;
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = 0.1});
  GradScaler scaler;
  EXPECT_THAT(refusal_of([&] { scaler.update(); }), HasSubstr("it has seen no optimizer"));
  EXPECT_THAT(refusal_of([&] { scaler.update(nan); }), HasSubstr("it must be"));
  EXPECT_THAT(refusal_of([&] { scaler.scale(torch::ones({}, torch::kFloat64)); }),
              HasSubstr("the loss is float64"));
  EXPECT_THAT(refusal_of([&] { scaler.scale({}); }), HasSubstr("wants a loss"));
  Vector bare;
  torch::optim::SGD stock(bare->parameters(), 0.1);
  EXPECT_THAT(refusal_of([&] { scaler.step(optimizer); }), HasSubstr("no gradients"));
  EXPECT_THAT(refusal_of([&] { scaler.step(stock); }), HasSubstr("no gradients"));
  EXPECT_EQ(optimizer.steps(), 0);
  scaler.scale(net(factor(false))).backward();
  scaler.unscale(optimizer);
  EXPECT_THAT(refusal_of([&] { scaler.unscale(optimizer); }),
              HasSubstr("unscale() was called twice"));
  scaler.step(optimizer);
  EXPECT_THAT(refusal_of([&] { scaler.step(optimizer); }), HasSubstr("step() was called twice"));
  EXPECT_THAT(refusal_of([&] { scaler.unscale(optimizer); }), HasSubstr("comes after step()"));
  scaler.update();
  Vector wide(torch::kFloat64);
  auto of_wide = data_parallel(wide, world);
  optim::SGD wide_optimizer(of_wide, {.lr = 0.1});
  EXPECT_THAT(refusal_of([&] { scaler.step(wide_optimizer); }),
              HasSubstr("a parameter is float64"));
  Job job(world, job_options());
  EXPECT_THAT(refusal_of([&] {
                Step step(job, "wide", {&wide_optimizer},
                          [&](const Shard&) { return wide(factor(false)); }, {.scaler = &scaler});
              }),
              HasSubstr("float64 parameters"));
}

TEST(GradScalerDropIn, IsSavedAndLoadedLikeAnOptimizer) {
  const Folder folder;
  GradScaler scaler({.growth_interval = 5});
  scaler.update_after(true);
  scaler.update_after(false);
  torch::save(scaler, folder / "scaler.pt");
  GradScaler other;
  torch::load(other, folder / "scaler.pt");
  EXPECT_EQ(other.scale(), 32768);
  EXPECT_EQ(other.state().growth_tracker, 1);
}

// A loop whose shard 1 overflows in two steps. Says the weights, and what became of the scale and the optimizer.
std::string scaled_loop(World& world, const std::string& folder, std::int64_t end,
                        double clip_norm = 0) {
  Job job(world, job_options(folder));
  One one(world, "mlp");
  one.optimizer.set_clip_norm(clip_norm);
  GradScaler scaler({.growth_interval = 2});
  Step step(job, "train", {&one.optimizer},
            [&](const Shard& shard) {
              auto loss = one.loss()(shard);
              const bool overflows = shard.index == 1 && (shard.step == 0 || shard.step == 4);
              return overflows ? loss * kInfinity : loss;
            },
            {.scaler = &scaler});
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = end})) {
    const std::string before = job.weights_sha256();
    EXPECT_EQ(step(batch).skipped, batch.step() == 0 || batch.step() == 4);
    EXPECT_EQ(job.weights_sha256() == before, batch.step() == 0 || batch.step() == 4);
  }
  return fmt::format("{} {} {} {}", job.weights_sha256(), scaler.scale(),
                     scaler.state().growth_tracker, one.optimizer.steps());
}

TEST(GradScalerStep, AnOverflowInOneShardHasOneHashOnAnyNumberOfWorkers) {
  for (const double clip_norm : {0.0, 0.1}) {
    World alone = World::over(connect_alone());
    const std::string expected = scaled_loop(alone, "", kSteps, clip_norm);
    EXPECT_THAT(expected, HasSubstr(" 65536 0 5"));
    const auto loop = [&](World& world) { return scaled_loop(world, "", kSteps, clip_norm); };
    if (clip_norm == 0) {
      expect_everywhere(expected, loop);
    } else {
      EXPECT_EQ(same_on_all(3, "shm", loop), expected);
    }
  }
}

TEST(GradScalerStep, GoesOnFromItsCheckpointOnAnotherNumberOfWorkers) {
  World alone = World::over(connect_alone());
  const std::string expected = scaled_loop(alone, "", kSteps);
  for (const std::int64_t until : {1, 3, 5}) {
    const Folder folder;
    same_on_all(3, "shm", [&](World& world) { return scaled_loop(world, folder.path(), until); });
    EXPECT_EQ(same_on_all(2, "thread",
                          [&](World& world) { return scaled_loop(world, folder.path(), kSteps); }),
              expected)
        << until;
  }
}

TEST(GradScalerStep, SaysThatTrainingHasDivergedWhenNoScaleHelps) {
  World world = World::over(connect_alone());
  lockstep::Job job(world, job_options());
  One one(world, "mlp");
  GradScaler scaler;
  Step step(job, "train", {&one.optimizer},
            [&](const Shard& shard) { return one.loss()(shard) * kInfinity; }, {.scaler = &scaler});
  EXPECT_THAT(refusal_of([&] {
                for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 100}))
                  step(batch);
              }),
              HasSubstr("training has diverged"));
  EXPECT_GT(scaler.scale(), 0);
}

// bfloat16 parameters with an average of weights, a limit on each element of a gradient, and with a scaler or without.
std::string half_loop(World& world, const std::string& folder, std::int64_t end, bool scales) {
  lockstep::Job job(world, job_options(folder));
  auto net = net_of("mlp");
  hold_weights(*net, torch::kBFloat16);
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
  optimizer.set_clip_value(1e-3);
  optimizer.set_ema(0.9);
  GradScaler scaler({.enabled = scales});
  Step step(job, "train", {&optimizer},
            [&](const Shard& shard) {
              Autocast half(torch::kCPU, torch::kBFloat16);
              return models::loss(*net, shard.batch);
            },
            {.scaler = &scaler});
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = end})) step(batch);
  return job.weights_sha256() + replica::digest(optimizer.ema());
}

TEST(GradScalerStep, HalfParametersGoOnToTheSameBits) {
  World alone = World::over(connect_alone());
  const std::string expected = half_loop(alone, "", kSteps, false);
  const std::string with_ema = half_loop(alone, "", kSteps, true);
  for (const std::string engine : {"shm", kTcpHosts})
    EXPECT_EQ(
        same_on_all(3, engine, [&](World& world) { return half_loop(world, "", kSteps, true); }),
        with_ema);
  for (int again = 0; again < 5; ++again) {  // workers that share masters must not write them late
    const Folder folder;
    half_loop(alone, folder.path(), 3, false);
    EXPECT_EQ(
        same_on_all(3, again % 2 == 0 ? "shm" : kTcpHosts,
                    [&](World& world) { return half_loop(world, folder.path(), kSteps, false); }),
        expected);
  }
}

// The scale is too large at first: 2¹²⁷ × 2²⁰, the gradient of the quotient, overflows.
TEST(GradScalerTrainer, FindsAScaleAndGivesTheBitsOfATrainingWithoutOne) {
  const auto train = [](World& world, std::optional<GradScalerOptions> scaler) {
    One one(world, "mlp");
    TrainerParts parts{one.model, one.net,
                       std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &one.optimizer),
                       data_of("mlp")};
    parts.loss = [net = one.net](const Batch& batch) {
      return models::loss(*net, batch) / 1048576 * 1048576;
    };
    TrainerOptions options{.steps = kSteps, .global_batch = 16, .shards = 8, .seed = kSeed};
    options.scaler = scaler;
    std::int64_t skipped = 0;
    TrainerHooks hooks;
    hooks.on_step = [&](const StepRecord& record) { skipped += record.skipped ? 1 : 0; };
    const TrainingResult result = Trainer(world, parts, options, hooks).run();
    EXPECT_EQ(result.skipped_steps, skipped);
    EXPECT_EQ(result.loss_scale.has_value(), scaler.has_value());
    return fmt::format("{} {}", result.weights_sha256, result.skipped_steps);
  };
  World alone = World::over(connect_alone());
  EXPECT_EQ(train(alone, GradScalerOptions{}), train(alone, std::nullopt));
  const GradScalerOptions large{.init_scale = std::ldexp(1.0, 127), .backoff_factor = 1.0 / 4096};
  const std::string found = train(alone, large);
  EXPECT_THAT(found, ::testing::Not(HasSubstr(" 0")));
  EXPECT_EQ(same_on_all(4, "shm", [&](World& world) { return train(world, large); }), found);
}

}  // namespace
}  // namespace lockstep::testing::loops
