// Batch norms that share statistics in a Step: one hash on any number of workers, and the numbers of one large batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/activation_checkpoint.h>
#include <lockstep/autocast.h>
#include <lockstep/errors.h>
#include <lockstep/sync_batchnorm.h>
#include <lockstep/trainer.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/torch/folder.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::loops {
namespace {

using ::testing::HasSubstr;

// A block with a way around it, random numbers, and a batch norm that is used twice.
struct SyncedNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto block = [this](const torch::Tensor& h) {
      return torch::dropout(torch::relu(norm2(conv2(h))), 0.2, drops && is_training());
    };
    if (shifts && is_training()) {
      torch::NoGradGuard no_grad;
      shift.mul_(0.9).add_(x.mean(), 0.1);
    }
    auto h = torch::dropout(torch::relu(norm1(conv1(x + shift))), 0.3, drops && is_training());
    h = h + (recomputes ? checkpoint(block, h) : block(h));
    h = norm1(h);
    return out(h.mean({2, 3}));
  }
  bool drops = true;
  bool recomputes = false;
  bool shifts = false;  // a buffer that a shard changes before the first batch norm
  torch::Tensor shift = register_buffer("shift", torch::zeros({}));
  torch::nn::Conv2d conv1 =
      register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 3).padding(1)));
  torch::nn::Conv2d conv2 = register_module(
      "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 6, 3).padding(1).bias(false)));
  torch::nn::BatchNorm2d norm1 = register_module("norm1", torch::nn::BatchNorm2d(6));
  torch::nn::BatchNorm2d norm2 = register_module("norm2", torch::nn::BatchNorm2d(6));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(6, kClasses));
};
TORCH_MODULE(SyncedNet);

torch::Tensor loss_of(SyncedNet& net, const Batch& batch) {
  const auto type = net->conv1->weight.scalar_type();
  return torch::cross_entropy_loss(net(batch.data.to(type)), batch.target);
}

enum class Halves { kNone, kInLoss, kAroundStep, kAroundLoop };

struct SyncedRun {
  std::string checkpoint = {};
  std::int64_t steps = kSteps;
  bool recomputes = false;
  std::int64_t group = 0;
  bool converts = true;
  Halves halves = Halves::kNone;
  bool cache_weights = true;
};

// conv1 and out are used twice: whether their cast is kept decides bits of their gradients.
torch::Tensor loss_in_halves(SyncedNet& net, const Batch& batch) {
  const torch::Tensor more = net->out(net->conv1(batch.data).mean({2, 3}));
  return torch::cross_entropy_loss((net(batch.data) + more).to(torch::kFloat32), batch.target);
}

// With autocast in the loss, around each Step, or around all of them.
std::string hash_in_halves(World& world, const SyncedRun& run) {
  const auto halves = [&](Halves where) -> std::unique_ptr<Autocast> {
    if (where != run.halves) return nullptr;
    return std::make_unique<Autocast>(torch::kCPU, torch::kBFloat16,
                                      AutocastOptions{.cache_weights = run.cache_weights});
  };
  lockstep::Job job(world, job_options());
  auto net = seeded<SyncedNet>(kSeed);
  if (run.converts) convert_sync_batchnorm(*net, world);
  auto model = data_parallel(net, world);
  optim::AdamW optimizer(model, {.lr = 1e-2});
  Step step(job, "train", {&optimizer}, [&](const Shard& shard) {
    const auto inside = halves(Halves::kInLoss);
    return loss_in_halves(net, shard.batch);
  });
  const auto outside = halves(Halves::kAroundLoop);
  for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = 3})) {
    const auto around = halves(Halves::kAroundStep);
    step(batch);
  }
  return job.weights_sha256();
}

TEST(SyncedStep, AutocastAroundItIsThatInTheLoss) {
  const WithoutOneDnn without_onednn;
  World alone = World::over(connect_alone());
  for (const bool converts : {true, false}) {
    for (const bool cache_weights : {true, false}) {
      SyncedRun run{
          .converts = converts, .halves = Halves::kInLoss, .cache_weights = cache_weights};
      const std::string expected = hash_in_halves(alone, run);
      EXPECT_EQ(same_on_all(2, "shm", [&](World& world) { return hash_in_halves(world, run); }),
                expected);
      for (const Halves halves : {Halves::kAroundStep, Halves::kAroundLoop}) {
        run.halves = halves;
        EXPECT_EQ(hash_in_halves(alone, run), expected)
            << converts << cache_weights << static_cast<int>(halves);
      }
      run.halves = Halves::kNone;
      EXPECT_NE(hash_in_halves(alone, run), expected);
    }
  }
}

std::string synced_hash(World& world, const SyncedRun& run) {
  lockstep::Job job(world, job_options(run.checkpoint));
  auto net = seeded<SyncedNet>(kSeed);
  net->recomputes = run.recomputes;
  net->shifts = true;
  net->norm2->options.momentum({});  // cumulative: it depends on how many batches it has seen
  if (run.converts) convert_sync_batchnorm(*net, world, {.group = run.group});
  auto model = data_parallel(net, world);
  optim::AdamW optimizer(model, {.lr = 1e-2});
  Step step(job, "train", {&optimizer}, [&](const Shard& shard) {
    shard.report("samples", static_cast<double>(shard.batch.samples), 1);
    return loss_of(net, shard.batch);
  });
  for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = run.steps})) {
    const auto outcome = step(batch);
    EXPECT_EQ(outcome.metric("samples"), batch.samples() == 16 ? 2 : 1);
  }
  return job.weights_sha256();
}

TEST(SyncedStep, HasOneHashOnAnyNumberOfWorkers) {
  const auto hash = [](World& world) { return synced_hash(world, {}); };
  const std::string expected = same_on_all(1, "thread", hash);
  expect_everywhere(expected, hash);
  EXPECT_EQ(
      same_on_all(3, "shm", [](World& world) { return synced_hash(world, {.recomputes = true}); }),
      expected);
  const auto in_groups = [](World& world) { return synced_hash(world, {.group = 4}); };
  const std::string of_groups = same_on_all(1, "thread", in_groups);
  EXPECT_NE(of_groups, expected);
  EXPECT_EQ(same_on_all(3, "shm", in_groups), of_groups);
}

TEST(SyncedStep, GoesOnFromACheckpointOnAnotherNumberOfWorkers) {
  const auto hash = [](World& world) { return synced_hash(world, {}); };
  const Folder folder;
  const SyncedRun begin{.checkpoint = folder.path(), .steps = 4};
  same_on_all(3, "shm", [&](World& world) { return synced_hash(world, begin); });
  const SyncedRun end{.checkpoint = folder.path()};
  EXPECT_EQ(same_on_all(2, "shm", [&](World& world) { return synced_hash(world, end); }),
            same_on_all(1, "thread", hash));
  World alone = World::over(connect_alone());
  const SyncedRun others[] = {{.checkpoint = folder.path(), .steps = 9, .group = 2},
                              {.checkpoint = folder.path(), .steps = 9, .converts = false}};
  for (const SyncedRun& other : others) {
    try {
      synced_hash(alone, other);
      ADD_FAILURE() << other.group;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("sync_batchnorm"));
    }
  }
}

// Plain LibTorch's loss over a global batch: each group of shards is one batch. Buffers have the values that the first
// group leaves.
torch::Tensor loss_by_group(SyncedNet& net, const GlobalBatch& batch, int group) {
  torch::Tensor sum = torch::zeros({}, torch::kFloat64);
  std::vector<torch::Tensor> after_first;
  for (int first = 0; first < 8; first += group) {
    std::vector<torch::Tensor> data;
    std::vector<torch::Tensor> target;
    for (int shard = first; shard < first + group; ++shard) {
      const Batch part = batch.shard(shard);
      if (part.samples == 0) continue;
      data.push_back(part.data);
      target.push_back(part.target);
    }
    if (data.empty()) continue;
    const Batch whole{torch::cat(data), torch::cat(target)};
    sum = sum + loss_of(net, whole) * whole.target.size(0);
    for (const auto& buffer : net->buffers()) {
      if (first == 0) after_first.push_back(buffer.clone());
    }
  }
  for (std::size_t i = 0; i < after_first.size(); ++i)
    net->buffers()[i].data().copy_(after_first[i]);
  return sum / batch.samples();
}

SyncedNet exact_net() {
  auto net = seeded<SyncedNet>(kSeed);
  net->drops = false;
  net->to(torch::kFloat64);
  return net;
}

TEST(SyncedStep, HasTheNumbersOfOneLargeBatch) {
  constexpr std::int64_t kFew = 3;  // the last one is short
  for (const std::int64_t group : {0, 4}) {
    in_world(3, "shm", [&](World& world) {
      SyncedNet plain = exact_net();
      SyncedNet net = exact_net();
      torch::optim::SGD by_torch(plain->parameters(), torch::optim::SGDOptions(0.1));
      lockstep::Job job(world, job_options());
      convert_sync_batchnorm(*net, world, {.group = group});
      auto model = data_parallel(net, world);
      optim::SGD optimizer(model, {.lr = 0.1});
      Step step(job, "train", {&optimizer},
                [&](const Shard& shard) { return loss_of(net, shard.batch); });
      for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = kFew})) {
        const double loss = step(batch).loss();
        by_torch.zero_grad();
        const torch::Tensor expected =
            loss_by_group(plain, batch, group == 0 ? 8 : static_cast<int>(group));
        expected.backward();
        by_torch.step();
        EXPECT_NEAR(loss, expected.item<double>(), 1e-12);
      }
      const auto expected = plain->named_parameters();
      for (const auto& item : net->named_parameters())
        EXPECT_TRUE(torch::allclose(item.value(), expected[item.key()], 1e-11, 1e-12))
            << item.key();
      const auto buffers = plain->named_buffers();
      for (const auto& item : net->named_buffers())
        EXPECT_TRUE(torch::allclose(item.value(), buffers[item.key()], 1e-12, 1e-12)) << item.key();
    });
  }
}

TEST(SyncedStep, TheTrainerHasItToo) {
  const auto trained = [](World& world, bool by_trainer) {
    One one(world, "cnn");
    EXPECT_GT(convert_sync_batchnorm(*one.net, world), 0U);
    if (by_trainer) {
      TrainerParts parts{one.model, one.net,
                         std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &one.optimizer),
                         data_of("cnn")};
      parts.loss = [net = one.net](const Batch& batch) { return models::loss(*net, batch); };
      const TrainerOptions options{.steps = 4, .global_batch = 16, .shards = 8, .seed = kSeed};
      return Trainer(world, parts, options).run().weights_sha256;
    }
    lockstep::Job job(world, job_options());
    Step step(job, "train", {&one.optimizer}, one.loss());
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = 4})) step(batch);
    return job.weights_sha256();
  };
  World alone = World::over(connect_alone());
  EXPECT_EQ(same_on_all(3, "shm", [&](World& world) { return trained(world, true); }),
            trained(alone, false));
}

// What a Step with this loss says.
std::string error_of(World& world,
                     const std::function<torch::Tensor(SyncedNet&, const Shard&)>& loss,
                     bool late = false) {
  lockstep::Job job(world, job_options());
  auto net = seeded<SyncedNet>(kSeed);
  if (!late) convert_sync_batchnorm(*net, world);
  auto model = data_parallel(net, world);
  optim::SGD optimizer(model, {.lr = 0.1});
  Step step(job, "train", {&optimizer}, [&](const Shard& shard) { return loss(net, shard); });
  try {
    for (const GlobalBatch& batch : job.batches(data_of("cnn"), {.steps = 2})) {
      if (late) convert_sync_batchnorm(*net, world);
      step(batch);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(SyncedStep, SaysWhatIsWrong) {
  World alone = World::over(connect_alone());
  EXPECT_THAT(error_of(alone,
                       [](SyncedNet& net, const Shard& shard) {
                         if (shard.index == 3) throw std::runtime_error("no such sample");
                         return loss_of(net, shard.batch);
                       }),
              HasSubstr("no such sample"));
  EXPECT_THAT(error_of(alone,
                       [](SyncedNet& net, const Shard& shard) {
                         if (shard.index == 5) net->norm2(net->conv1(shard.batch.data));
                         return loss_of(net, shard.batch);
                       }),
              HasSubstr("shard 5 is at SyncBatchNorm 1, and shard 7 is at SyncBatchNorm 0"));
  EXPECT_THAT(error_of(alone,
                       [](SyncedNet& net, const Shard& shard) {
                         auto loss = loss_of(net, shard.batch);
                         loss.backward();
                         return loss;
                       }),
              HasSubstr("backward"));
  EXPECT_THAT(
      error_of(
          alone, [](SyncedNet& net, const Shard& shard) { return loss_of(net, shard.batch); },
          true),
      HasSubstr("before batches()"));
}

}  // namespace
}  // namespace lockstep::testing::loops
