// Training on a real GPU: `make test-gpu` runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control/world_state.h"
#include "tests/torch/nets.h"
#include "tests/torch/optimizers.h"
#include "torch/models/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Device kGpu{DeviceKind::kCuda, 0};

World alone() {
  return World::over(connect_alone(), kGpu);
}
World alone_over_nccl() {
  control::OwnBootstrap bootstrap;
  return World::over(connect("nccl", bootstrap), kGpu);
}

// A model of `lockstep train` and data for it. 43 samples: the last of an epoch's batches is short, and leaves shards
// without any.
struct Job {
  std::string model = "cnn";
  bool adamw_clipped = false;
  bool half = false;         // by autocast
  bool held = false;         // and weights of layers are held so, too
  bool rounded = false;      // or are at first what they would be then
  bool untraceable = false;  // the loss looks at a number on the host
  std::string optimizer;     // with its own options and an average; empty: by adamw_clipped
  DataParallelOptions parallel;
  TrainerOptions options{.steps = 9, .global_batch = 16, .shards = 4, .seed = 5};
};

DataShape shape_of(const Job& job) {
  if (job.model == "gpt") return {{32}, 50, true};
  return job.model == "resnet18" ? DataShape{{3, 32, 32}, 10, false}
                                 : DataShape{{1, 28, 28}, 10, false};
}

DatasetPtr dataset_of(const Job& job) {
  constexpr std::int64_t kSamples = 43;
  std::vector<std::int64_t> sizes = shape_of(job).sample;
  sizes.insert(sizes.begin(), kSamples);
  if (job.model == "gpt") {
    const auto tokens = samples(1, {kSamples, 33}).mul(1000).to(torch::kInt64).remainder(50);
    return tensor_dataset(tokens.slice(1, 0, 32).contiguous(), tokens.slice(1, 1, 33).contiguous());
  }
  return tensor_dataset(samples(1, sizes),
                        samples(2, {kSamples}).mul(1000).to(torch::kInt64).remainder(10));
}

std::shared_ptr<models::Net> net_of(const Job& job) {
  torch::manual_seed(3);
  const auto net = models::make({.name = job.model}, shape_of(job));  // with its own dropout
  if (!job.held && !job.rounded) return net;
  net->to(torch::kCUDA);
  hold_weights(*net, torch::kBFloat16);
  if (job.rounded) net->to(torch::kFloat32);
  return net;
}

struct Trained {
  std::shared_ptr<models::Net> net;
  std::shared_ptr<optim::Optimizer> optimizer;
  TrainingResult result;
};

Trained trained(World world, const Job& job) {
  const auto net = net_of(job);
  auto model = data_parallel(net, world, job.parallel);
  std::shared_ptr<optim::Optimizer> optimizer;
  if (!job.optimizer.empty()) {
    optimizer = make_optimizer(job.optimizer, model);
    optimizer->set_ema(0.9);
    optimizer->set_clip_value(0.1);
  } else if (job.adamw_clipped) {
    optimizer = std::make_shared<optim::AdamW>(model, optim::AdamWOptions{.lr = 1e-3});
    optimizer->set_clip_norm(0.5);
  } else {
    optimizer = std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
  }
  const auto loss = [&job, net](const Batch& batch) {
    const Autocast half(torch::kCUDA, torch::kBFloat16, {.enabled = job.half});
    const torch::Tensor value = models::loss(*net, batch);
    if (job.untraceable) {
      EXPECT_GT(value.item<double>(), 0);
    }
    return value;
  };
  TrainerParts parts{model, net, optimizer, dataset_of(job), nullptr, loss, nullptr, nullptr};
  return {net, optimizer, Trainer(world, parts, job.options).run()};
}

TrainingResult train(World world, const Job& job) {
  return trained(std::move(world), job).result;
}

// A small model with a loss of the test's own, 8 samples a step.
struct SmallJob {
  SmallJob() : world(alone()), model(data_parallel(net, world)) {
    optimizer = std::make_shared<optim::AdamW>(model, optim::AdamWOptions{});
  }
  torch::Tensor mean_square(const Batch& batch) { return net->forward(batch.data).pow(2).mean(); }

  TrainingResult train(const std::function<torch::Tensor(const Batch&)>& loss, bool graphs,
                       const TrainerHooks& hooks = {}) {
    TrainerParts parts{
        model,   net.ptr(), optimizer, tensor_dataset(samples(1, {64, 64}), samples(2, {64})),
        nullptr, loss,      nullptr,   nullptr};
    const TrainerOptions options{
        .steps = 20, .global_batch = 8, .shards = 1, .cuda_graphs = graphs};
    return Trainer(world, parts, options, hooks).run();
  }

  World world;
  TwoLayers net{64, 100, 10};
  DataParallel<TwoLayers> model;
  std::shared_ptr<optim::Optimizer> optimizer;
};

class GpuTrainer : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
  }
};

TEST_P(GpuTrainer, GraphsAndForcedCollectivesKeepTheBits) {
  for (const bool adamw : {false, true}) {
    for (const auto buffers : {ShardBufferRule::kFirstShard, ShardBufferRule::kMean}) {
      SCOPED_TRACE(std::string(GetParam()) + (adamw ? ", adamw" : ", sgd"));
      Job job;
      job.model = GetParam();
      job.adamw_clipped = adamw;
      job.half = adamw;
      job.options.buffers = buffers;
      job.options.cuda_graphs = false;
      const TrainingResult eager = train(alone(), job);
      EXPECT_EQ(eager.shard_counts.replayed, 0);
      job.options.cuda_graphs = true;
      const TrainingResult replayed = train(alone(), job);
      EXPECT_GT(replayed.shard_counts.replayed, 10);
      EXPECT_THAT(replayed.shard_counts.reason, HasSubstr("short last batch"));
      EXPECT_EQ(replayed.weights_sha256, eager.weights_sha256);
      EXPECT_EQ(replayed.final_loss, eager.final_loss);
      job.parallel = {.bucket_bytes = 1 << 14, .force_collectives = true};
      EXPECT_EQ(train(alone_over_nccl(), job).weights_sha256, eager.weights_sha256);
      job.options.cuda_graphs = false;
      EXPECT_EQ(train(alone_over_nccl(), job).weights_sha256, eager.weights_sha256);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(EveryModel, GpuTrainer, ::testing::Values("mlp", "cnn", "resnet18", "gpt"),
                         [](const auto& model) { return std::string(model.param); });

TEST_F(GpuTrainer, LayerWiseRulesAndAveragesKeepTheBitsInGraphsAndCollectives) {
  for (const char* const optimizer : {"lars", "lamb"}) {
    SCOPED_TRACE(optimizer);
    const auto averages = [](const Trained& of) {
      std::vector<torch::Tensor> all;
      for (const auto& [name, tensor] : of.optimizer->ema()) all.push_back(tensor.flatten().cpu());
      return torch::cat(all);
    };
    Job job;
    job.optimizer = optimizer;
    job.options.cuda_graphs = false;
    const Trained eager = trained(alone(), job);
    job.options.cuda_graphs = true;
    const Trained replayed = trained(alone(), job);
    EXPECT_GT(replayed.result.shard_counts.replayed, 10);
    job.parallel = {.bucket_bytes = 1 << 14, .force_collectives = true};
    const Trained reduced = trained(alone_over_nccl(), job);
    for (const Trained* const other : {&replayed, &reduced}) {
      EXPECT_EQ(other->result.weights_sha256, eager.result.weights_sha256);
      EXPECT_TRUE(torch::equal(averages(*other), averages(eager)));
    }
  }
}

// The first scale is too large for float32, so the first steps overflow.
TEST_F(GpuTrainer, ScaledStepsThatOverflowAreSkippedInGraphsAndCollectives) {
  for (const char* const optimizer : {"", "lamb"}) {
    SCOPED_TRACE(optimizer);
    Job job;
    job.optimizer = optimizer;
    job.options.scaler = GradScalerOptions{.init_scale = 0x1p127, .backoff_factor = 0x1p-10};
    job.options.cuda_graphs = false;
    const TrainingResult eager = train(alone(), job);
    EXPECT_GT(eager.skipped_steps, 0);
    EXPECT_LT(eager.skipped_steps, 9);
    EXPECT_LT(eager.loss_scale, 0x1p127);
    job.options.cuda_graphs = true;
    const TrainingResult replayed = train(alone(), job);
    EXPECT_EQ(replayed.skipped_steps, eager.skipped_steps);
    EXPECT_EQ(replayed.weights_sha256, eager.weights_sha256);
    job.parallel.force_collectives = true;
    EXPECT_EQ(train(alone_over_nccl(), job).weights_sha256, eager.weights_sha256);
  }
}

TEST_F(GpuTrainer, OneShardIsReplayedAndReadWhereItIs) {
  Job job;
  job.options.shards = 1;
  job.options.global_batch = 43;
  const TrainingResult replayed = train(alone(), job);
  EXPECT_EQ(replayed.shard_counts.replayed, 7);
  EXPECT_EQ(replayed.shard_counts.eager, 2);
  EXPECT_THAT(replayed.shard_counts.reason, IsEmpty());
  job.parallel.force_collectives = true;
  EXPECT_EQ(train(alone_over_nccl(), job).weights_sha256, replayed.weights_sha256);
}

TEST_F(GpuTrainer, ALossThatCannotBeCapturedRunsEagerly) {
  Job job;
  job.options.cuda_graphs = false;
  const std::string expected = train(alone(), job).weights_sha256;
  job.options.cuda_graphs = true;
  job.untraceable = true;
  const TrainingResult result = train(alone(), job);
  EXPECT_EQ(result.shard_counts.replayed, 0);
  EXPECT_THAT(result.shard_counts.reason, HasSubstr("cannot be captured"));
  EXPECT_EQ(result.weights_sha256, expected);
  job.untraceable = false;  // and the next job can be
  EXPECT_EQ(train(alone(), job).weights_sha256, expected);
}

TEST_F(GpuTrainer, TakesALossOfTheHostAndOfAnyTypeAlong) {
  SmallJob job;
  std::vector<float> computed;
  const auto loss = [&](const Batch& batch) {
    const torch::Tensor value = job.mean_square(batch).cpu();
    computed.push_back(value.item<float>());
    return computed.size() % 3 == 0 ? value.to(torch::kFloat64) : value;
  };
  std::vector<float> told;
  TrainerHooks hooks;
  hooks.on_step = [&](const StepRecord& step) { told.push_back(static_cast<float>(step.loss)); };
  EXPECT_EQ(job.train(loss, false, hooks).steps, 20);
  EXPECT_EQ(told, computed);
}

TEST_F(GpuTrainer, RefusesALossThatTheHostChangesBesideItsGraph) {
  SmallJob job;
  double coefficient = 1;
  const auto loss = [&](const Batch& batch) { return job.mean_square(batch) * coefficient; };
  TrainerHooks hooks;
  hooks.on_step = [&](const StepRecord&) { coefficient *= 0.99; };
  EXPECT_THROW(job.train(loss, true, hooks), BadInput);
  EXPECT_EQ(job.train(loss, false, hooks).steps, 20);
}

TEST_F(GpuTrainer, SaysInOneLineThatNoMemoryIsLeft) {
  SmallJob job;
  int passes = 0;
  const auto loss = [&](const Batch& batch) {
    torch::Tensor waste;
    if (++passes == 6) waste = torch::empty({std::int64_t{1} << 42}, batch.data.options());
    return job.mean_square(batch);
  };
  try {
    job.train(loss, false);
    FAIL() << "16 TiB were there";
  } catch (const Unavailable& error) {
    EXPECT_THAT(error.what(), HasSubstr("no memory is left"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST_F(GpuTrainer, FindsABitThatChangedOnItsOwn) {
  SmallJob job;
  for (const bool in_state : {false, true}) {
    TrainerHooks hooks;
    hooks.on_step = [&](const StepRecord& record) {
      if (record.step != 6) return;
      torch::Tensor bits = job.net->second->weight.data();
      if (in_state) bits = job.optimizer->state().front().tensor;
      torch::NoGradGuard no_grad;
      bits = bits.flatten().view(torch::kInt32).slice(0, 5, 6);
      bits.bitwise_xor_(torch::scalar_tensor(1 << 9, torch::kInt32));
    };
    try {
      job.train([&](const Batch& batch) { return job.mean_square(batch); }, true, hooks);
      FAIL() << "nobody has seen it";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("step 7"));
      EXPECT_THAT(error.what(), HasSubstr("second."));
    }
  }
}

// The drop-in loop, against LibTorch's own optimizers on the same GPU.
class GpuDropIn : public ::testing::Test {
 protected:
  static void expect_same(const std::string& optimizer, double clip) {
    SCOPED_TRACE(optimizer);
    const auto data = samples(1, {32, 64}).to(torch::kCUDA);
    TwoLayers plain(64, 100, 10);
    TwoLayers net(64, 100, 10);
    copy_values(*plain, *net);
    plain->to(torch::kCUDA);
    World world = alone();
    auto model = data_parallel(net, world);
    const auto own = make_optimizer(optimizer, model);
    own->set_clip_norm(clip);
    const auto stock = make_stock_optimizer(optimizer, plain->parameters());
    for (int step = 0; step < 20; ++step) {
      stock->zero_grad();
      plain->forward(data).pow(2).mean().backward();
      if (clip > 0) torch::nn::utils::clip_grad_norm_(plain->parameters(), clip);
      stock->step();
      own->zero_grad();
      model->forward(data).pow(2).mean().backward();
      own->step();
    }
    const auto expected = plain->parameters();
    const auto values = net->parameters();
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(torch::allclose(values[i], expected[i], 1e-5, 1e-6)) << i;
    if (clip > 0) {
      EXPECT_GT(own->last_norm(), 0);
    }
  }
  static void copy_values(torch::nn::Module& from, torch::nn::Module& to) {
    torch::NoGradGuard no_grad;
    const auto values = from.parameters();
    auto copies = to.parameters();
    for (std::size_t i = 0; i < values.size(); ++i) copies[i].copy_(values[i]);
  }
};

TEST_F(GpuDropIn, HasTheNumbersOfStockOptimizers) {
  for (const double clip : {0.0, 0.05}) {
    for (const std::string& optimizer : optimizer_names()) expect_same(optimizer, clip);
  }
}

// Norms come to the host some steps later.
TEST_F(GpuDropIn, TellsABadNormThoughClippingWasSwitchedOffMeanwhile) {
  World world = alone();
  TwoLayers net(64, 100, 10);
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = 0.01});
  optimizer.set_clip_norm(1);
  const auto data = samples(1, {8, 64}).to(torch::kCUDA);
  const auto step = [&](double factor) {
    optimizer.zero_grad();
    (factor * model->forward(data).pow(2).mean()).backward();
    optimizer.step();
  };
  step(1);
  step(std::numeric_limits<double>::infinity());
  optimizer.set_clip_norm(0);
  EXPECT_THROW(step(1), BadInput);
  step(1);
  EXPECT_TRUE(torch::isfinite(net->first->weight).all().item<bool>());
}

TEST_F(GpuDropIn, AveragesBySamplesAndAddsUpInNoSync) {
  World world = alone_over_nccl();
  TwoLayers net(64, 100, 10);
  auto model = data_parallel(net, world, {.force_collectives = true});
  const auto data = samples(1, {8, 64}).to(torch::kCUDA);
  const auto mean_of = [&](std::int64_t first, std::int64_t end) {
    return net->forward(data.slice(0, first, end)).pow(2).mean();
  };
  mean_of(0, 8).backward();
  const torch::Tensor expected = net->parameters()[0].grad().clone();
  model.zero_grad();
  {
    const NoSync no_sync = model.no_sync();
    model.backward(mean_of(0, 2), 2);
  }
  model.backward(mean_of(2, 8), 6);
  EXPECT_TRUE(torch::allclose(net->parameters()[0].grad(), expected, 1e-5, 1e-7));
}

// 2 MiB in the first layer, and little in all others.
class GpuLargeGradients : public GpuDropIn {
 protected:
  static std::vector<torch::Tensor> trained(World world, const DataParallelOptions& options,
                                            double clip) {
    torch::manual_seed(7);
    TwoLayers net(64, 8192, 10);
    auto model = data_parallel(net, world, options);
    optim::AdamW optimizer(model, {.lr = 1e-3});
    optimizer.set_clip_norm(clip);
    const auto data = samples(1, {32, 64}).to(torch::kCUDA);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      model->forward(data).pow(2).mean().backward();
      optimizer.step();
    }
    std::vector<torch::Tensor> values;
    for (const auto& value : net->parameters()) values.push_back(value.detach().clone());
    return values;
  }
};

TEST_F(GpuLargeGradients, AreReducedWhereBackwardMadeThem) {
  TwoLayers net(64, 8192, 10);
  World world = alone_over_nccl();
  auto model = data_parallel(net, world, {.force_collectives = true});
  const void* large = nullptr;
  const void* small = nullptr;
  net->first->weight.register_hook([&](const torch::Tensor& grad) { large = grad.data_ptr(); });
  net->second->weight.register_hook([&](const torch::Tensor& grad) { small = grad.data_ptr(); });
  const auto data = samples(1, {32, 64}).to(torch::kCUDA);
  for (int pass = 0; pass < 2; ++pass) {
    model.zero_grad();
    model->forward(data).pow(2).mean().backward();
    EXPECT_EQ(net->first->weight.grad().data_ptr(), large);
    EXPECT_NE(net->second->weight.grad().data_ptr(), small);
  }
  const torch::Tensor mean = net->first->weight.grad().clone();
  model.zero_grad();
  model.backward(model->forward(data).pow(2).mean(), 4);  // multiplied by 4, and divided there
  EXPECT_EQ(net->first->weight.grad().data_ptr(), large);
  EXPECT_TRUE(torch::equal(net->first->weight.grad(), mean));
}

TEST_F(GpuLargeGradients, KeepTheBits) {
  at::globalContext().setDeterministicAlgorithms(true, false);
  for (const double clip : {0.0, 0.05}) {
    const auto expected = trained(alone(), {}, clip);
    for (const std::size_t bucket : {0UL, 25UL << 20}) {
      const auto values =
          trained(alone_over_nccl(), {.bucket_bytes = bucket, .force_collectives = true}, clip);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(torch::equal(values[i], expected[i])) << i << " clipped to " << clip;
    }
  }
}

TEST_F(GpuLargeGradients, AreGatheredWhereOthersHaveTheirMemory) {
  struct TwoViewsImpl : torch::nn::Module {
    torch::Tensor a = register_parameter("a", torch::ones({512, 1024}));
    torch::Tensor b = register_parameter("b", torch::ones({512, 1024}));
    torch::Tensor forward() { return (a.view(-1) + b.view(-1)).pow(2).sum(); }
  };
  const auto net = std::make_shared<TwoViewsImpl>();
  World world = alone_over_nccl();
  auto model = data_parallel(net, world, {.force_collectives = true});
  model.backward(net->forward(), 4);
  const auto four = torch::full({512, 1024}, 4.0F, net->a.options().requires_grad(false));
  EXPECT_TRUE(torch::equal(net->a.grad(), four));
  EXPECT_TRUE(torch::equal(net->b.grad(), four));
  EXPECT_NE(net->a.grad().data_ptr(), net->b.grad().data_ptr());
}

TEST_F(GpuLargeGradients, OfTheStepBeforeAreNotAddedToUnseen) {
  torch::nn::Linear net(torch::nn::LinearOptions(64, 8192).bias(false));
  World world = alone_over_nccl();
  auto model = data_parallel(net, world, {.force_collectives = true});
  const auto data = samples(1, {32, 64}).to(torch::kCUDA);
  const auto pass = [&] { model.backward(model->forward(data).pow(2).mean(), 4); };
  pass();
  model.zero_grad();
  pass();
  net->weight.mutable_grad() = torch::Tensor();
  pass();
  EXPECT_THROW(pass(), BadInput);
}

TEST_F(GpuTrainer, LargeGradientsOfAGraphAreReducedWhereItMadeThem) {
  for (const char* model : {"cnn", "resnet18"}) {
    Job job;
    job.model = model;
    job.adamw_clipped = true;
    job.options.shards = 1;
    job.options.global_batch = 43;
    const TrainingResult expected = train(alone(), job);
    job.parallel.force_collectives = true;
    for (const bool graphs : {false, true}) {
      job.options.cuda_graphs = graphs;
      const TrainingResult result = train(alone_over_nccl(), job);
      EXPECT_EQ(result.shard_counts.replayed, graphs ? 7 : 0);
      EXPECT_EQ(result.weights_sha256, expected.weights_sha256) << model;
    }
  }
}

// The output layer is the embedding, which stays float32.
TEST_F(GpuTrainer, HeldWeightsHaveTheBitsOfAutocast) {
  Job job;
  job.model = "gpt";
  job.half = true;
  job.options.shards = 1;
  job.options.global_batch = 43;  // all of them full
  job.rounded = true;
  const Trained cast = trained(alone(), job);
  job.rounded = false;
  job.held = true;
  const Trained held = trained(alone(), job);
  EXPECT_GT(held.result.shard_counts.replayed, 3);
  std::map<std::string, torch::Tensor> masters;
  for (const auto& [name, tensor] : held.optimizer->state()) masters[name] = tensor;
  int halves = 0;
  const auto weights = held.net->named_parameters();
  for (const auto& item : cast.net->named_parameters()) {
    const torch::Tensor& weight = weights[item.key()];
    const bool half = weight.scalar_type() == torch::kBFloat16;
    halves += half ? 1 : 0;
    EXPECT_TRUE(torch::equal(half ? masters["master/" + item.key()] : weight, item.value()))
        << item.key();
    if (half) {
      EXPECT_TRUE(torch::equal(weight, item.value().to(torch::kBFloat16))) << item.key();
    }
  }
  EXPECT_EQ(halves, 2 * 4 * 2) << "weight and bias of four layers in each of two blocks";
}

TEST_F(GpuTrainer, HeldWeightsKeepTheBitsInGraphsAndCollectives) {
  Job job;
  job.model = "gpt";
  job.adamw_clipped = true;
  job.half = true;
  job.held = true;
  job.options.cuda_graphs = false;
  const std::string eager = train(alone(), job).weights_sha256;
  job.options.cuda_graphs = true;
  EXPECT_EQ(train(alone(), job).weights_sha256, eager);
  job.parallel.force_collectives = true;
  EXPECT_EQ(train(alone_over_nccl(), job).weights_sha256, eager);
}

TEST_F(GpuDropIn, MastersKeepWhatBfloat16Loses) {
  World world = alone();
  TwoLayers net(64, 100, 10);
  net->to(torch::kBFloat16);
  auto model = data_parallel(net, world);
  optim::AdamW optimizer(model, {.lr = 1e-5, .weight_decay = 0});
  const auto data = samples(1, {32, 64}).to(torch::kCUDA).to(torch::kBFloat16);
  const torch::Tensor before = net->first->weight.detach().to(torch::kFloat32);
  constexpr int kSteps = 50;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model->forward(data).pow(2).mean().backward();
    optimizer.step();
  }
  torch::Tensor master;
  for (const auto& [name, tensor] : optimizer.state()) {
    if (name == "master/first.weight") master = tensor;
  }
  ASSERT_TRUE(master.defined());
  EXPECT_EQ(master.scalar_type(), torch::kFloat32);
  EXPECT_TRUE(torch::equal(master.to(torch::kBFloat16), net->first->weight));
  // Adam moves an element by some lr a step while its gradient keeps its sign; bfloat16 alone would round that away.
  EXPECT_GT((master - before).abs().max().item<double>(), 0.5 * kSteps * 1e-5);
  // Whoever writes to a parameter is heard.
  {
    torch::NoGradGuard no_grad;
    net->first->weight.zero_();
  }
  optimizer.zero_grad();
  model->forward(data).pow(2).mean().backward();
  optimizer.step();
  EXPECT_LT(master.abs().max().item<double>(), 1e-4);
}

}  // namespace
}  // namespace lockstep::testing
