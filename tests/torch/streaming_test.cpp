// Streaming DiLoCo: a round exchanges one fragment of the model while shards train. The result is that of the definition, on any
// number of workers and with every engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plan/rounds.h"
#include "tests/torch/folder.h"
#include "tests/torch/local_jobs.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::loops::streaming {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;
using How = LocalHow;

constexpr std::int64_t kLong = 13;  // more rounds than there are fragments

How with_keep(double keep) {
  How how{.local = LocalSteps::streaming_diloco(4, 2), .steps = kLong};
  how.local.streaming->keep = keep;
  return how;
}

std::map<std::string, How> kinds() {
  LocalSteps mean = LocalSteps::streaming_diloco(3, 3);
  mean.outer_lr = 1;
  mean.outer_momentum = 0;
  mean.outer_nesterov = false;
  return {
      {"two fragments", with_keep(0.5)},
      {"nothing kept", with_keep(0)},
      {"four fragments, SGD",
       {.local = LocalSteps::streaming_diloco(4, 4), .optimizer = "sgd", .steps = kLong}},
      {"means", {.local = mean, .optimizer = "plain", .steps = kLong}},
      {"BatchNorm and dropout",
       {.local = LocalSteps::streaming_diloco(6, 3), .model = "cnn", .steps = kLong}},
      {"with a codec",
       {.local = LocalSteps::streaming_diloco(4, 2), .codec = "int8", .steps = kLong}},
  };
}

TEST(StreamingJob, HasOneHashOnAnyNumberOfWorkersWithEveryEngine) {
  expect_one_hash_each(kinds());
}

// The same by LibTorch alone.
class Plain {
 public:
  explicit Plain(const How& how)
      : how_(how), outer_(copies_of(*net_of(how.model))), batches_(batches_of_job(how)) {
    for (int shard = 0; shard < how.shards; ++shard) {
      nets_.push_back(net_of(how.model));
      optimizers_.emplace_back(how.optimizer, *nets_.back());
    }
    movers_.assign(outer_.size(), PlainOuter(how.local));
    std::vector<std::size_t> bytes;
    for (const torch::Tensor& tensor : outer_) bytes.push_back(tensor.nbytes());
    ends_ = plan::fragment_ends(bytes, how.local.streaming->fragments);
  }

  const Tensors& run() {
    const std::int64_t length = how_.local.stages.front().steps;
    for (std::int64_t first = 0; first < how_.steps; first += length) {
      const std::int64_t end = std::min(first + length, how_.steps);
      const auto fragment =
          static_cast<std::size_t>(first / length % how_.local.streaming->fragments);
      const std::size_t from = fragment == 0 ? 0 : ends_[fragment - 1];
      const bool is_last = end == how_.steps;
      // What is sent is from before the round, but for the last one.
      const std::vector<Tensors> before = weights_of_shards();
      const std::vector<double> shares = train(first, end);
      if (is_last) {
        exchange(0, outer_.size(), weights_of_shards(), shares);
        break;
      }
      exchange(from, ends_[fragment], before, shares);
      mix(from, ends_[fragment]);
    }
    return outer_;
  }

 private:
  std::vector<Tensors> weights_of_shards() const {
    std::vector<Tensors> all;
    for (const auto& net : nets_) all.push_back(copies_of(*net));
    return all;
  }

  // Every shard by itself; what each counts for.
  std::vector<double> train(std::int64_t first, std::int64_t end) {
    std::vector<double> shares;
    for (std::size_t shard = 0; shard < nets_.size(); ++shard) {
      models::Net& net = *nets_[shard];
      double samples = 0;
      for (std::int64_t step = first; step < end; ++step) {
        const Batch& batch = batches_.at({step, static_cast<int>(shard)});
        samples += static_cast<double>(batch.samples);
        if (batch.samples == 0) continue;
        const auto gradients = torch::autograd::grad({models::loss(net, batch)}, net.parameters());
        optimizers_[shard].step(net.parameters(), gradients, step + 1);
      }
      shares.push_back(samples * how_.shards / 16 / static_cast<double>(end - first));
    }
    return shares;
  }

  void exchange(std::size_t from, std::size_t to, const std::vector<Tensors>& weights,
                const std::vector<double>& shares) {
    for (std::size_t i = from; i < to; ++i) {
      Tensors differences;
      for (const Tensors& of_shard : weights) differences.push_back(outer_[i] - of_shard[i]);
      movers_[i].step(outer_[i], differences, shares);
    }
  }

  void mix(std::size_t from, std::size_t to) {
    const torch::NoGradGuard no_grad;
    const double keep = how_.local.streaming->keep;
    for (const auto& net : nets_) {
      for (std::size_t i = from; i < to; ++i) {
        torch::Tensor w = net->parameters()[i];
        w.copy_(w * keep + outer_[i] * (1 - keep));
      }
    }
  }

  How how_;
  Tensors outer_;
  std::map<std::pair<std::int64_t, int>, Batch> batches_;
  std::vector<std::shared_ptr<models::Net>> nets_;  // of shards
  std::vector<PlainOptimizer> optimizers_;
  std::vector<PlainOuter> movers_;  // of parameters
  std::vector<std::size_t> ends_;   // of fragments
};

TEST(StreamingJob, HasTheBitsOfThePlainProgram) {
  for (const auto& [name, how] : kinds()) {
    if (how.model != "mlp" || how.codec != "none") continue;
    SCOPED_TRACE(name);
    Tensors weights;
    same_on_all(2, "shm", [&](World& world) { return trained(world, how, &weights); });
    Plain plain(how);
    const Tensors& expected = plain.run();
    ASSERT_EQ(weights.size(), expected.size());
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_TRUE(torch::equal(weights[i], expected[i])) << i;
  }
}

TEST(StreamingJob, GoesOnFromItsCheckpointOnAnotherNumberOfWorkers) {
  for (const auto& [engine, workers] : {std::pair("tcp", 2), std::pair("shm", 4)}) {
    for (const std::int64_t stop : {4, 6, 10}) {
      const Folder folder;
      How how = with_keep(0.5);
      const std::string expected =
          same_on_all(1, "thread", [&](World& world) { return trained_until(world, how, kLong); });
      how.checkpoint = folder / "run";
      same_on_all(3, "tcp", [&](World& world) { return trained_until(world, how, stop); });
      EXPECT_EQ(same_on_all(workers, engine,
                            [&](World& world) { return trained_until(world, how, kLong); }),
                expected)
          << engine << " from step " << stop;
    }
  }
}

// A loop that follows begins with what all have, and so does one before which the program writes to the model.
TEST(StreamingJob, ASecondLoopBeginsWithWhatAllHave) {
  for (const bool writes : {false, true}) {
    std::set<std::string> all;
    for (const int workers : {1, 2, 4}) {
      all.insert(same_on_all(workers, "shm", [&](World& world) {
        const How how = with_keep(0.5);
        Job job(world, options_of(how));
        One one(world, how.model);
        Step step(job, "train", {&one.optimizer}, one.loss());
        for (const std::int64_t steps : {5, 10}) {
          for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = steps})) {
            const double first = one.net->parameters()[0].flatten()[0].item<double>();
            if (writes) {
              EXPECT_EQ(first == 0.25, batch.step() == 5);
            }
            step(batch);
          }
          torch::NoGradGuard no_grad;
          if (writes)
            for (torch::Tensor& parameter : one.net->parameters()) parameter.fill_(0.25);
        }
        return job.weights_sha256();
      }));
    }
    EXPECT_EQ(all.size(), 1U);
  }
}

// Between two hosts only a fragment travels in a round.
TEST(StreamingJob, SendsOneFragmentAtATime) {
  in_world(2, "tcp", [&](World& world) {
    const How how = with_keep(0.5);
    Job job(world, options_of(how));
    One one(world, how.model);
    Step step(job, "train", {&one.optimizer}, one.loss());
    std::vector<Tensors> seen;
    for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 10})) {
      seen.push_back(copies_of(*one.net));
      step(batch);
    }
    // Round 0 has nothing to send yet; round 1 moves the second fragment, round 2 the first.
    const auto changed = [&](std::size_t round, std::size_t parameter) {
      return !torch::equal(seen[round][parameter], seen[round + 1][parameter]);
    };
    const std::size_t last = seen[0].size() - 1;
    EXPECT_FALSE(changed(0, 0) || changed(0, last));
    EXPECT_TRUE(!changed(1, 0) && changed(1, last));
    EXPECT_TRUE(changed(2, 0) && !changed(2, last));
  });
}

// Nobody waits for a fragment before the end of the round: not for its bytes, and not for the worker that sends it last. In step 5
// the last shard has no samples.
TEST(StreamingJob, ShardsTrainWhileTheirFragmentTravels) {
  for (const auto& [local, round] : {std::pair(LocalSteps::streaming_diloco(4, 2), 4),
                                     std::pair(LocalSteps::streaming_diloco(2, 2), 5)}) {
    SCOPED_TRACE(to_string(local));
    std::atomic<bool> late_has_come{false};
    std::atomic<int> trained_before{0};
    in_world(2, "tcp", [&, &local = local, first = round](World& world) {
      const How how{.local = local};
      Job job(world, options_of(how));
      One one(world, how.model);
      Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
        if (world.rank() == 0 && shard.step >= first && !late_has_come) ++trained_before;
        return models::loss(*one.net, shard.batch);
      });
      for (const GlobalBatch& batch : job.batches(data_of(how.model), {.steps = 12})) {
        if (world.rank() == 1 && batch.step() == first) {
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
          late_has_come = true;
        }
        step(batch);
      }
    });
    EXPECT_GT(trained_before, 0);
  }
}

TEST(StreamingJob, WhatMakesNoSenseIsRefusedByName) {
  const auto refusal = [](const LocalSteps& local) -> std::string {
    try {
      trained_alone({.local = local});
    } catch (const BadInput& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_THAT(refusal(LocalSteps::streaming_diloco(100, 100)), HasSubstr("want a parameter each"));
  LocalSteps local = LocalSteps::streaming_diloco(4, 2);
  local.streaming->fragments = 1;
  EXPECT_THAT(refusal(local), HasSubstr("1 fragments"));
  local.streaming = Streaming{.keep = 1};
  EXPECT_THAT(refusal(local), HasSubstr("keeps 1 of its own"));
  local.streaming = Streaming{};
  local.state = LocalState::kAveraged;
  EXPECT_THAT(refusal(local), HasSubstr("keeps its weights"));
}

}  // namespace
}  // namespace lockstep::testing::loops::streaming
