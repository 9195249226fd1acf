// Data sets that draw random numbers: what they give depends on the job, the epoch and the samples alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "examples/train/augmented.h"
#include "tests/torch/nets.h"
#include "torch/data/draws.h"
#include "torch/data/reader.h"

namespace lockstep::testing::draws {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSamples = 48;

DatasetPtr pictures() {
  return tensor_dataset(samples(1, {kSamples, 1, 6, 6}), torch::arange(kSamples).remainder(4));
}

// A data set whose pictures a function changes.
struct Changed : Dataset {
  using Change = std::function<void(Batch&, std::span<const Sample>)>;
  explicit Changed(Change its_change) : change(std::move(its_change)) {}
  std::int64_t size() const override { return kSamples; }
  Batch batch(std::span<const Sample> asked) const override {
    Batch batch = inner->batch(asked);
    change(batch, asked);
    return batch;
  }
  DatasetPtr inner = pictures();
  Change change;
};
DatasetPtr changed(Changed::Change change) {
  return std::make_shared<Changed>(std::move(change));
}

struct OfLibTorch : torch::data::datasets::Dataset<OfLibTorch> {
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {data[i] + torch::randn({1, 6, 6}), torch::tensor(i % 4)};
  }
  DistributedSampler::OptionalSize size() const override { return kSamples; }
  torch::Tensor data = samples(1, {kSamples, 1, 6, 6});
};

struct DroppingImpl : torch::nn::Module {
  DroppingImpl()
      : first(register_module("first", torch::nn::Linear(36, 16))),
        second(register_module("second", torch::nn::Linear(16, 4))) {}
  torch::Tensor loss(const Batch& batch) {
    const auto hidden = torch::dropout(torch::relu(first(batch.data.flatten(1))), 0.5, true);
    return torch::cross_entropy_loss(second(hidden), batch.target);
  }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Dropping);

std::string trained(World& world, const DatasetPtr& dataset, int loader_threads) {
  auto net = seeded<Dropping>(7);
  auto model = data_parallel(net, world);
  auto optimizer = std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.1});
  TrainerParts parts{model, net.ptr(), optimizer, dataset};
  parts.loss = [net](const Batch& batch) mutable { return net->loss(batch); };
  return Trainer(world, parts,
                 {.epochs = 2,
                  .global_batch = 16,
                  .shards = 4,
                  .seed = 5,
                  .loader_threads = loader_threads})
      .run()
      .weights_sha256;
}

std::set<std::string> hashes_of(const DatasetPtr& dataset) {
  std::set<std::string> hashes;
  for (const int workers : {1, 2, 4}) {
    for (const int threads : {0, 1, 3}) {
      in_world(workers, [&](World& world) {
        const std::string hash = trained(world, dataset, threads);
        if (world.leader()) hashes.insert(hash);
      });
    }
  }
  return hashes;
}

TEST(Draws, OfADataSetGiveTheSameBitsOnAnyNumberOfWorkersAndLoaderThreads) {
  std::set<std::string> hashes;
  const std::vector<DatasetPtr> datasets{
      pictures(), std::make_shared<Augmented>(pictures()),
      changed([](Batch& batch, auto) { batch.data += torch::rand_like(batch.data); }),
      adapt(OfLibTorch()), adapt(OfLibTorch().map(torch::data::transforms::Stack<>())),
      // For few samples, so that most batches draw nothing.
      changed([](Batch& batch, std::span<const Sample> asked) {
        for (std::size_t i = 0; i < asked.size(); ++i) {
          if (asked[i].index % 16 == 5)
            batch.data[static_cast<std::int64_t>(i)] *= torch::rand({1});
        }
      })};
  for (const DatasetPtr& dataset : datasets) {
    const auto own = hashes_of(dataset);
    EXPECT_EQ(own.size(), 1U);
    hashes.insert(own.begin(), own.end());
  }
  // Both adapted ones are one and the same.
  EXPECT_EQ(hashes.size(), datasets.size() - 1);
}

TEST(Draws, OfADataSetLeaveThoseOfTheModelAlone) {
  const auto wasteful = changed([](Batch&, auto) { torch::rand({20000}); });
  in_world(1, [&](World& world) {
    EXPECT_EQ(trained(world, pictures(), 1), trained(world, wasteful, 1));
  });
}

TEST(Draws, AreOthersInEveryEpochAndOfEverySeedAndTheSameAgain) {
  const std::int64_t some[] = {3, 17, 40};
  for (const DatasetPtr& dataset :
       {DatasetPtr(std::make_shared<Augmented>(pictures())), adapt(OfLibTorch())}) {
    const auto data = [&](std::int64_t epoch, std::uint64_t seed) {
      return data::read(*dataset, samples_of(some, epoch, seed)).data;
    };
    EXPECT_TRUE(torch::equal(data(0, 1), data(0, 1)));
    EXPECT_FALSE(torch::equal(data(0, 1), data(1, 1)));
    EXPECT_FALSE(torch::equal(data(0, 1), data(0, 2)));
  }
}

TEST(Draws, OfTheLoadersBatchesAreOfTheSampleToo) {
  const auto drawn = [](int threads, std::int64_t epoch) {
    torch::Tensor all;
    in_world(1, [&](World& world) {
      std::vector<torch::Tensor> seen;
      auto batches = loader(std::make_shared<Augmented>(pictures()), world,
                            {.global_batch = 8, .shuffle = false, .threads = threads});
      for (auto& batch : batches.epoch(epoch)) seen.push_back(batch.data);
      all = torch::cat(seen);
    });
    return all;
  };
  EXPECT_TRUE(torch::equal(drawn(0, 0), drawn(3, 0)));
  EXPECT_FALSE(torch::equal(drawn(3, 0), drawn(3, 1)));
}

// Whatever LibTorch can draw with, inside a scope it is the scope's, and outside it is the default generator's.
TEST(Draws, ComeFromTheScopesGeneratorForEveryOperator) {
  using torch::Tensor;
  const std::vector<std::function<Tensor()>> operators{
      [] { return torch::rand({4}); },
      [] { return torch::randn({4}); },
      [] { return torch::randn_like(torch::ones({4})); },
      [] { return torch::randint(1000, {4}, torch::TensorOptions().dtype(torch::kInt64)); },
      [] { return torch::randperm(20); },
      [] { return torch::normal(0.0, 1.0, {4}); },
      [] { return torch::bernoulli(torch::full({64}, 0.5)); },
      [] { return torch::dropout(torch::ones({64}), 0.5, true); },
      [] { return torch::multinomial(torch::ones({64}), 8); },
      [] { return torch::poisson(torch::full({16}, 30.0)); },
      [] { return torch::empty({4}).exponential_(); },
      [] { return torch::empty({4}).uniform_(0, 1, at::detail::getDefaultCPUGenerator()); },
      [] { return torch::nn::Linear(3, 3)->weight.detach(); }};
  const auto state = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
  for (std::size_t i = 0; i < operators.size(); ++i) {
    const Tensor before = state();
    const auto drawn = [&](std::uint64_t seed) {
      const data::DrawScope scope(seed);
      return operators[i]();
    };
    EXPECT_TRUE(torch::equal(drawn(1), drawn(1))) << "operator " << i;
    EXPECT_FALSE(torch::equal(drawn(1), drawn(2))) << "operator " << i;
    EXPECT_TRUE(torch::equal(before, state())) << "operator " << i;
    operators[i]();
    EXPECT_FALSE(torch::equal(before, state())) << "operator " << i;
  }
}

TEST(Draws, WithAGeneratorOfItsOwnAreLeftAlone) {
  const auto own = [] { return torch::rand({4}, at::detail::createCPUGenerator(9)); };
  const torch::Tensor expected = own();
  const data::DrawScope outer(1);
  const torch::Tensor first = torch::rand({4});
  {
    const data::DrawScope inner(1);
    EXPECT_TRUE(torch::equal(torch::rand({4}), first));
    EXPECT_TRUE(torch::equal(own(), expected));
  }
  EXPECT_FALSE(torch::equal(torch::rand({4}), first)) << "the outer scope goes on";
}

std::string refusal_of(const DatasetPtr& dataset) {
  return outcomes_in_world(1, [&](World& world) { trained(world, dataset, 1); })[0].text;
}

TEST(Draws, FromElsewhereAreRefused) {
  EXPECT_THAT(refusal_of(changed([](Batch& batch, std::span<const Sample> asked) {
                torch::manual_seed(static_cast<std::uint64_t>(asked.front().index));
                batch.data += torch::rand_like(batch.data);
              })),
              HasSubstr("seeds LibTorch's default generator"));
  auto numbers = std::make_shared<std::mt19937>(1);
  EXPECT_THAT(refusal_of(changed([numbers](Batch& batch, auto) {
                if ((*numbers)() % 2 == 0) batch.data.neg_();
              })),
              HasSubstr("is not the same when it is read again"));
}

TEST(Draws, BatchesOfAnotherNumberOfSamplesAreRefused) {
  EXPECT_THAT(refusal_of(changed([](Batch& batch, auto) { batch.samples = 0; })),
              HasSubstr("says it has 0 samples where 1 were asked for"));
}

}  // namespace
}  // namespace lockstep::testing::draws
