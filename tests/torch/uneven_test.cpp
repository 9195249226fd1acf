// Workers that run out of batches, buffers, and graphs that do not change: beside plain LibTorch, and
// beside PyTorch's DDP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/metrics.h>
#include <lockstep/optim.h>
#include <lockstep/sync_batchnorm.h>
#include <lockstep/tensors.h>
#include <lockstep/uneven_inputs.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/python.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::uneven_cases {
namespace {

using ::testing::ElementsAre, ::testing::HasSubstr;
using DivideBy = UnevenOptions::DivideBy;

// As in ddp_semantics.py.
struct Net : torch::nn::Module {
  Net() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("third", third);
    to(torch::kFloat64);
    torch::NoGradGuard no_grad;
    for (torch::Tensor& p : parameters())
      p.copy_((torch::arange(p.numel(), torch::kFloat64) * 1.7).cos().view_as(p) / 3 + 0.2);
  }
  torch::Tensor forward(const torch::Tensor& x, const std::string& what = "layers") {
    if (what == "first") return first(x);
    if (what == "reused") return second(first(torch::tanh(first(torch::tanh(first(x))))));
    if (what == "norm") return second(norm(first(x)));
    return second(torch::relu(first(x)));
  }
  torch::nn::Linear first{8, 8};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Linear second{8, 4};
  torch::nn::Linear third{2, 2};
};

torch::Tensor batch_at(int rank, int i, std::int64_t samples = 6) {
  return (torch::arange(6 * 8, torch::kFloat64) * 0.37 + rank * 1.3 + i * 0.71)
      .sin()
      .view({6, 8})
      .narrow(0, 0, samples);
}

std::vector<torch::Tensor> batches_of(int rank, int count) {
  std::vector<torch::Tensor> all;
  for (int i = 0; i < count; ++i) all.push_back(batch_at(rank, i));
  return all;
}

torch::Tensor loss_of(const torch::Tensor& output) {
  return output.pow(2).mean();
}

using Numbers = std::vector<double>;

void append(Numbers& all, const torch::Tensor& tensor, std::int64_t count) {
  const torch::Tensor flat = tensor.defined() ? tensor.detach().reshape({-1}).contiguous()
                                              : torch::full({count}, std::nan(""), torch::kFloat64);
  all.insert(all.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + count);
}
Numbers weights_of(const torch::nn::Module& net) {
  Numbers all;
  for (const auto& p : net.parameters()) append(all, p, p.numel());
  return all;
}
Numbers gradients_of(const torch::nn::Module& net) {
  Numbers all;
  for (const auto& p : net.parameters()) append(all, p.grad(), p.numel());
  return all;
}

void expect_near(const Numbers& a, const Numbers& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    EXPECT_NEAR(a[i], b[i], 1e-12) << what << ", number " << i;
  }
}

// The numbers of batches that ranks have.
using Counts = std::vector<int>;

// Plain LibTorch, on all batches of each turn.
Numbers plain(const Counts& counts, DivideBy by) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int turn = 0; turn < *std::max_element(counts.begin(), counts.end()); ++turn) {
    for (auto& p : net.parameters()) p.mutable_grad() = torch::Tensor();
    torch::Tensor sum = torch::zeros({}, torch::kFloat64);
    int present = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      if (turn >= counts[rank]) continue;
      ++present;
      sum = sum + loss_of(net.forward(batch_at(static_cast<int>(rank), turn)));
    }
    const int divisor = by == DivideBy::kPresent ? present : static_cast<int>(counts.size());
    (sum / divisor).backward();
    optimizer.step();
  }
  return weights_of(net);
}

int count_of(const Counts& counts, const World& world) {
  return counts[static_cast<std::size_t>(world.rank())];
}

DataParallelOptions unused_allowed(std::size_t bucket_bytes = 64) {
  return {.missing_gradient = MissingGradient::kZero,
          .first_bucket_bytes = bucket_bytes,
          .bucket_bytes = bucket_bytes};
}

TEST(UnevenInputs, IdleWorkersAddNothingAndStayIdentical) {
  for (const Counts& counts : {Counts{2, 4}, Counts{3, 1, 2}}) {
    for (const DivideBy by : {DivideBy::kWorkers, DivideBy::kPresent}) {
      const Numbers expected = plain(counts, by);
      for (const std::string& engine : cpu_engines()) {
        in_world(static_cast<int>(counts.size()), engine, [&](World& world) {
          auto model = data_parallel(std::make_shared<Net>(), world, unused_allowed());
          optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
          const auto batches = batches_of(world.rank(), count_of(counts, world));
          UnevenInputs inputs(batches, world, {.divide_by = by});
          int turns = 0;
          for (const auto& batch : inputs) {
            EXPECT_EQ(inputs.idle(), turns++ >= count_of(counts, world));
            model.zero_grad();
            loss_of(model->forward(batch)).backward();
            optimizer.step();
          }
          EXPECT_FALSE(inputs.idle());
          expect_near(weights_of(*model), expected, engine);
          EXPECT_TRUE(model.identical()) << engine;
        });
      }
    }
  }
}

// Rank 0 ends in the middle of a sum: what it added before counts.
TEST(UnevenInputs, KeepWhatNoSyncHasAddedUp) {
  Net net;
  torch::Tensor sum = torch::zeros({}, torch::kFloat64);
  for (const auto& [rank, i, samples] :
       std::vector<std::array<int, 3>>{{0, 0, 6}, {1, 0, 4}, {1, 1, 4}})
    sum = sum + samples * loss_of(net.forward(batch_at(rank, i, samples)));
  (sum / 14).backward();
  for (const std::string& engine : cpu_engines()) {
    in_world(2, engine, [&](World& world) {
      auto model = data_parallel(std::make_shared<Net>(), world, unused_allowed());
      std::vector<torch::Tensor> batches;
      for (int i = 0; i < 1 + world.rank(); ++i)
        batches.push_back(batch_at(world.rank(), i, world.leader() ? 6 : 4));
      model.zero_grad();
      int turn = 0;
      for (const auto& batch : UnevenInputs(batches, world)) {
        auto guard = model.no_sync(turn++ == 0);
        model.backward(loss_of(model->forward(batch)), batch.size(0));
      }
      EXPECT_EQ(turn, 2);
      expect_near(gradients_of(*model), gradients_of(net), engine);
    });
  }
}

// The statistics, the running ones too, are those of the samples that count.
TEST(UnevenInputs, LeaveIdleSamplesOutOfASyncBatchNorm) {
  const auto train = [](World& world, const std::vector<torch::Tensor>& batches) {
    auto net = std::make_shared<Net>();
    EXPECT_EQ(convert_sync_batchnorm(*net, world), 1U);
    auto model = data_parallel(net, world, unused_allowed());
    optim::SGD optimizer(model, {.lr = 0.1});
    for (const auto& batch : UnevenInputs(batches, world)) {
      model.zero_grad();
      backward(model->forward(batch, "norm").pow(3).mean(), batch.size(0));
      optimizer.step();
    }
    Numbers all = weights_of(*net);
    append(all, net->norm->running_mean, 8);
    append(all, net->norm->running_var, 8);
    return all;
  };
  World alone = World::over(connect_alone());
  const Numbers expected =
      train(alone, {torch::cat({batch_at(0, 0), batch_at(1, 0), batch_at(2, 0)}),
                    torch::cat({batch_at(0, 1), batch_at(2, 1)}), batch_at(2, 2)});
  in_world(3, "shm", [&](World& world) {
    const Counts counts{2, 1, 3};
    expect_near(train(world, batches_of(world.rank(), count_of(counts, world))), expected, "norm");
  });
}

TEST(UnevenInputs, CountNothingOfIdleWorkersInAverages) {
  in_world(2, "thread", [](World& world) {
    Metrics metrics(world, {"loss"});
    std::vector<double> means;
    UnevenInputs inputs(std::vector<double>(world.leader() ? 1 : 3, 1.0 + world.rank()), world);
    torch::Tensor present = torch::zeros(1, torch::kInt64);
    for (const double value : inputs) {
      metrics.add("loss", value, 1);
      metrics.add("loss", torch::tensor(value), 1);
      means.push_back(mean(world, value));
      const torch::Tensor here = torch::tensor({std::int64_t{inputs.idle() ? 0 : 1}});
      all_reduce(world, here);
      present += here;
    }
    EXPECT_THAT(means, ElementsAre(1.5, 2, 2));
    EXPECT_EQ(present.item<std::int64_t>(), 4);
    EXPECT_EQ(metrics.reduce().mean("loss"), 7.0 / 4);
    for (const double value : inputs)
      if (mean(world, value) == 2) break;  // all workers, in the second turn: nobody is idle then
    EXPECT_FALSE(inputs.idle());
    EXPECT_EQ(mean(world, 1.0 + world.rank()), 1.5);
  });
}

TEST(UnevenInputs, TakeBatchesFromALoaderOrLibTorchs) {
  in_world(2, "thread", [](World& world) {
    const std::int64_t samples = world.leader() ? 3 : 7;
    const auto data = torch::arange(samples, torch::kFloat32).view({samples, 1});
    World self = World::over(connect_alone());
    auto batches = loader(tensor_dataset(data, data), self,
                          {.global_batch = 2, .shuffle = false, .uneven = Uneven::kKeep});
    double sum = 0;
    UnevenInputs inputs(batches.epoch(0), world);
    int turns = 0;
    for (auto& batch : inputs) {
      ++turns;
      if (!inputs.idle()) sum += batch.data.sum().item<double>();
    }
    EXPECT_EQ(turns, 4);
    EXPECT_EQ(sum, world.leader() ? 3 : 21);
    auto dataset = torch::data::datasets::TensorDataset(data).map(
        torch::data::transforms::Stack<torch::data::TensorExample>());
    auto theirs = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        std::move(dataset), torch::data::DataLoaderOptions(2));
    for (auto& batch : UnevenInputs(*theirs, world)) {
      EXPECT_EQ(batch.data.size(1), 1);
      --turns;
    }
    EXPECT_EQ(turns, 0);
  });
}

TEST(UnevenInputs, EndTogetherIfOneEndsEarlyWhenAsked) {
  in_world(3, "shm", [](World& world) {
    int turns = 0;
    try {
      UnevenInputs inputs(std::vector<int>(world.rank() == 1 ? 2U : 4U), world,
                          {.throw_on_early_termination = true});
      for (const int batch : inputs) turns += 1 + batch;
      ADD_FAILURE() << "nothing was thrown";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has no batch left, and ranks 0, 2 have one"));
      EXPECT_THAT(error.ranks(), ElementsAre(1));
    }
    EXPECT_EQ(turns, 2);
    for (const int batch : UnevenInputs(std::vector<int>(2), world)) turns += 1 + batch;
    EXPECT_EQ(turns, 4);
  });
}

TEST(UnevenInputs, NeedAnExampleWhereAWorkerHasNoBatchAtAll) {
  in_world(2, "thread", [](World& world) {
    const std::vector<int> batches(world.leader() ? 0U : 3U, 7);
    try {
      for (const int batch : UnevenInputs(batches, world)) ADD_FAILURE() << batch;
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has no batch at all"));
    }
    int sum = 0;
    for (const int batch : UnevenInputs(batches, world, {}, 5)) sum += batch;
    EXPECT_EQ(sum, world.leader() ? 15 : 21);
    for (const int batch : UnevenInputs(std::vector<int>(), world)) ADD_FAILURE() << batch;
  });
}

TEST(UnevenInputs, WorkersThatDoNotDoTheSameGetAMismatch) {
  const auto one_without = outcomes_in_world(2, [](World& world) {
    auto model = data_parallel(std::make_shared<Net>(), world, unused_allowed());
    if (world.leader()) return loss_of(model->forward(batch_at(0, 0))).backward();
    for (const auto& batch : UnevenInputs(batches_of(1, 2), world))
      loss_of(model->forward(batch)).backward();
  });
  const auto options = outcomes_in_world(2, [](World& world) {
    UnevenInputs inputs(std::vector<int>(2), world,
                        {.divide_by = world.leader() ? DivideBy::kPresent : DivideBy::kWorkers});
    for ([[maybe_unused]] const int batch : inputs) continue;
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(one_without[rank].kind, ErrorKind::kMismatch);
    EXPECT_THAT(one_without[rank].text, HasSubstr("UnevenInputs"));
    EXPECT_EQ(options[rank].kind, ErrorKind::kMismatch);
    EXPECT_THAT(options[rank].text, HasSubstr("rank 1 has other options of UnevenInputs than"));
  }
}

template <typename Body>
std::string refused(const Body& body) {
  try {
    body();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "not refused";
}

TEST(UnevenInputs, AndBuffersBeforeForwardAreRefusedInAStep) {
  World world = World::over(connect_alone());
  const auto run = [&](BufferSource buffers) {
    loops::Job job(world, {.global_batch = 8, .shards = 4});
    auto model = data_parallel(seeded<TwoLayers>(1, 10, 4, 4), world, {.buffers = buffers});
    optim::SGD optimizer(model, {.lr = 0.1});
    Step step(job, "train", {&optimizer},
              [&](const Shard& shard) { return loss_of(model(shard.batch.data)); });
    for (const auto& batch : job.batches(loops::data_of("mlp"), {.steps = 1})) step(batch);
  };
  EXPECT_THAT(refused([&] {
                for ([[maybe_unused]] const int one : UnevenInputs(std::vector<int>(1), world))
                  run(BufferSource::kLeader);
              }),
              HasSubstr("a loop over job.batches() inside of a loop of UnevenInputs"));
  EXPECT_THAT(refused([&] { run(BufferSource::kLeaderBeforeForward); }),
              HasSubstr("kLeaderBeforeForward is for drop-in loops"));
}

// Buffers of the leader until it is idle, and then of the first that is not; or of those on average.
TEST(UnevenInputs, BuffersAreThoseOfWorkersWithABatch) {
  for (const std::string& engine : cpu_engines()) {
    for (const BufferSource source : {BufferSource::kLeader, BufferSource::kMean}) {
      in_world(3, engine, [&](World& world) {
        auto options = unused_allowed();
        options.buffers = source;
        auto model = data_parallel(std::make_shared<Net>(), world, options);
        const Counts counts{1, 2, 2};
        Net alone;  // what the source does, on the model's weights, which nobody changes
        const auto statistics = [&](int rank, int turn) {
          Net net;
          net.norm->running_mean.copy_(alone.norm->running_mean);
          net.forward(batch_at(rank, turn), "norm");
          return net.norm->running_mean.clone();
        };
        for (const auto& batch :
             UnevenInputs(batches_of(world.rank(), count_of(counts, world)), world)) {
          model.zero_grad();
          model(batch, "norm").pow(2).mean().backward();
        }
        for (int turn = 0; turn < 2; ++turn) {
          torch::Tensor next = statistics(turn, turn);
          if (source == BufferSource::kMean) {
            next = turn == 0 ? (statistics(0, 0) + statistics(1, 0) + statistics(2, 0)) / 3
                             : (statistics(1, 1) + statistics(2, 1)) / 2;
          }
          alone.norm->running_mean.copy_(next);
        }
        EXPECT_LT(largest_difference(model->norm->running_mean, alone.norm->running_mean), 1e-14)
            << engine;
        EXPECT_TRUE(model.identical()) << engine;
      });
    }
  }
}

// A generator that runs twice before the critic's backward, and both have batch norms.
TEST(Buffers, TwoForwardsBeforeOneBackwardAreRightFromEverySource) {
  const auto loss = [](auto& net, int rank) {
    return net(batch_at(rank, 0), "norm").pow(3).mean() -
           net(batch_at(rank, 1), "norm").sin().mean();
  };
  Net plain;
  const auto run = [&](const torch::Tensor& x, const char* what) { return plain.forward(x, what); };
  ((loss(run, 0) + loss(run, 1)) / 2).backward();
  for (const BufferSource source : {BufferSource::kLeader, BufferSource::kMean,
                                    BufferSource::kLeaderBeforeForward, BufferSource::kOwn}) {
    for (const std::string& engine : cpu_engines()) {
      in_world(2, engine, [&](World& world) {
        auto options = unused_allowed();
        options.buffers = source;
        auto model = data_parallel(std::make_shared<Net>(), world, options);
        model.zero_grad();
        loss(model, world.rank()).backward();
        expect_near(gradients_of(*model), gradients_of(plain), engine);
        EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 2);
        const bool follow = source == BufferSource::kLeader || source == BufferSource::kMean;
        EXPECT_EQ(model.identical(), follow) << engine;
        model.sync_buffers();
        EXPECT_TRUE(model.identical()) << engine;
      });
    }
  }
}

TEST(Buffers, WorkersThatSynchroniseDifferentModelsGetAMismatch) {
  const auto outcomes = outcomes_in_world(2, [](World& world) {
    auto a = data_parallel(std::make_shared<Net>(), world);
    auto b = data_parallel(std::make_shared<Net>(), world);
    (world.leader() ? a : b).sync_buffers();
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
}

TEST(StaticGraph, NamesWhatChanges) {
  for (const std::string& engine : cpu_engines()) {
    const auto outcomes = outcomes_in_world(
        2,
        [](World& world) {
          auto model = data_parallel(std::make_shared<Net>(), world,
                                     {.missing_gradient = MissingGradient::kStatic});
          for (int i = 0; i < 3; ++i) {
            model.zero_grad();
            if (i == 0 && world.rank() == 1) {
              model.synchronize();  // has no batch in the first step
            } else {
              loss_of(model->forward(batch_at(world.rank(), i))).backward();
            }
            EXPECT_FALSE(model->third->weight.grad().defined());
            EXPECT_FALSE(model->norm->weight.grad().defined());
          }
          model.zero_grad();
          loss_of(model->forward(batch_at(world.rank(), 0), "norm")).backward();
        },
        engine);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kBadInput) << engine;
      EXPECT_THAT(outcome.text, HasSubstr("norm.weight has a gradient now, norm.bias has a"));
    }
  }
}

TEST(SparseGradients, OfIdleWorkersAreZero) {
  in_world(2, "shm", [](World& world) {
    const auto options = torch::nn::EmbeddingOptions(6, 2).sparse(true);
    auto model = data_parallel(seeded<torch::nn::Embedding>(3, options), world);
    const std::vector<torch::Tensor> batches(world.leader() ? 1 : 2, torch::tensor({1, 2}));
    for (const auto& words : UnevenInputs(batches, world)) {
      model.zero_grad();
      model->forward(words).sum().backward();
    }
    EXPECT_EQ(model->weight.grad().sum().item<double>(), 2);  // of 4, by two workers
  });
}

TEST(SparseGradients, InAStepHaveTheBitsOfDenseOnes) {
  const auto trained = [](World& world, bool sparse) {
    loops::Job job(world, {.global_batch = 8, .shards = 4});
    auto net = seeded<torch::nn::Embedding>(3, torch::nn::EmbeddingOptions(12, 5).sparse(sparse));
    auto model = data_parallel(net, world);
    optim::SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
    Step step(job, "train", {&optimizer},
              [&](const Shard& shard) { return loss_of(model->forward(shard.batch.data)); });
    for (const auto& batch : job.batches(loops::data_of("gpt"), {.steps = 3})) step(batch);
    return job.weights_sha256();
  };
  World alone = World::over(connect_alone());
  const std::string expected = trained(alone, false);
  EXPECT_EQ(trained(alone, true), expected);
  for (const std::string& engine : cpu_engines()) {
    EXPECT_EQ(loops::same_on_all(3, engine, [&](World& world) { return trained(world, true); }),
              expected)
        << engine;
  }
}

Numbers static_graph(World& world) {
  auto model =
      data_parallel(std::make_shared<Net>(), world, {.missing_gradient = MissingGradient::kStatic});
  optim::SGD optimizer(model, {.lr = 0.1});
  for (int i = 0; i < 3; ++i) {
    model.zero_grad();
    loss_of(model->forward(batch_at(world.rank(), i), "reused")).backward();
    optimizer.step();
  }
  Numbers all = gradients_of(*model);
  const Numbers weights = weights_of(*model);
  all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

Numbers one_gradient(World& world, const std::string& what) {
  auto model = data_parallel(std::make_shared<Net>(), world, unused_allowed());
  model.zero_grad();
  if (what == "no_sync") {
    auto guard = model.no_sync();
    loss_of(model->forward(batch_at(world.rank(), 0))).backward();
  }
  const bool unused = what == "unused";
  loss_of(model->forward(batch_at(world.rank(), unused ? 0 : 1),
                         unused && !world.leader() ? "first" : "layers"))
      .backward();
  return gradients_of(*model);
}

Numbers joined(World& world, const UnevenOptions& options) {
  auto model = data_parallel(std::make_shared<Net>(), world, unused_allowed());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  int done = 0;
  try {
    for (const auto& batch :
         UnevenInputs(batches_of(world.rank(), 2 + 2 * world.rank()), world, options)) {
      model.zero_grad();
      loss_of(model->forward(batch)).backward();
      optimizer.step();
      ++done;
    }
  } catch (const BadInput&) {
    return {static_cast<double>(done)};
  }
  return weights_of(*model);
}

Numbers buffers(World& world, BufferSource source) {
  auto options = unused_allowed();
  options.buffers = source;
  auto model = data_parallel(std::make_shared<Net>(), world, options);
  Numbers all;
  for (int i = 0; i < 3; ++i) {
    model(batch_at(world.rank(), i), "norm").pow(3).mean().backward();
    append(all, model->norm->running_mean, 8);
    append(all, model->norm->running_var, 8);
  }
  all.push_back(static_cast<double>(model->norm->num_batches_tracked.item<std::int64_t>()));
  return all;
}

using Case = std::function<Numbers(World&)>;

std::map<std::string, Case> parity_cases() {
  const auto gradient = [](const char* what) {
    return [what](World& world) { return one_gradient(world, what); };
  };
  const auto join_with = [](const UnevenOptions& options) {
    return [options](World& world) { return joined(world, options); };
  };
  const auto buffers_from = [](BufferSource source) {
    return [source](World& world) { return buffers(world, source); };
  };
  return {{"unused", gradient("unused")},
          {"no_sync", gradient("no_sync")},
          {"static_graph", static_graph},
          {"join_initial", join_with({})},
          {"join_present", join_with({.divide_by = DivideBy::kPresent})},
          {"join_throws", join_with({.throw_on_early_termination = true})},
          {"buffers", buffers_from(BufferSource::kLeaderBeforeForward)},
          {"own_buffers", buffers_from(BufferSource::kOwn)}};
}

std::map<std::string, Numbers> read_numbers(const std::string& path) {
  std::map<std::string, Numbers> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (std::string word; words >> word;) all[name].push_back(std::strtod(word.c_str(), nullptr));
  }
  return all;
}

TEST(AgainstDdp, UnusedParametersStaticGraphsNoSyncJoinAndBuffersGiveTheSameNumbers) {
  const std::string python = python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no PyTorch to compare with: make deps-test installs it";
  const Folder folder;
  const std::string command = "'" LOCKSTEP_COMMAND "' run -q -n 2 -- " + python + " '" +
                              DDP_SEMANTICS "' '" + (folder / "ddp") + "' > '" + (folder / "out") +
                              "' 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream out(folder / "out");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(out), {});
  const std::vector<std::map<std::string, Numbers>> theirs = {read_numbers(folder / "ddp.0"),
                                                              read_numbers(folder / "ddp.1")};
  for (const auto& [name, run] : parity_cases()) {
    in_world(2, "shm", [&, &name = name, &run = run](World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      ASSERT_EQ(theirs[rank].count(name), 1U) << name;
      expect_near(run(world), theirs[rank].at(name), name);
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::uneven_cases
