// Data sets, the loader and the sampler, as a program uses them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>
#include <lockstep/errors.h>

#include <fstream>
#include <set>

#include "base/files.h"
#include "plan/sampler.h"
#include "tests/torch/folder.h"
#include "tests/torch/nets.h"
#include "torch/data/reader.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Samples whose data is their own number.
DatasetPtr numbered(std::int64_t count) {
  return tensor_dataset(torch::arange(count), torch::arange(count) * 10);
}

std::vector<std::int64_t> values(const torch::Tensor& tensor) {
  const auto host = tensor.contiguous();
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

std::vector<std::int64_t> epoch_of(const Loader& loader, std::int64_t number) {
  std::vector<std::int64_t> seen;
  for (auto& batch : loader.epoch(number)) {
    EXPECT_TRUE(torch::equal(batch.target, batch.data * 10));
    EXPECT_EQ(batch.samples, batch.data.size(0));
    for (const auto value : values(batch.data)) seen.push_back(value);
  }
  return seen;
}

TEST(LoaderTest, ReadsDistributedSamplersOrder) {
  for (const int threads : {0, 1, 3}) {
    in_world(3, [&](World& world) {
      auto batches =
          loader(numbered(23), world, {.global_batch = 6, .seed = 9, .threads = threads});
      EXPECT_EQ(batches.steps_per_epoch(), 4);
      for (const std::int64_t epoch : {0, 1, 5}) {
        plan::SamplerOptions options{.samples = 23, .seed = 9};
        EXPECT_EQ(epoch_of(batches, epoch),
                  plan::shard_samples(options, epoch, world.rank(), world.size()));
      }
    });
  }
}

TEST(LoaderTest, KeepReadsEverySampleOnceOverAllWorkers) {
  std::mutex mutex;
  std::multiset<std::int64_t> all;
  in_world(3, [&](World& world) {
    auto batches = loader(numbered(23), world, {.global_batch = 6, .uneven = Uneven::kKeep});
    const auto mine = epoch_of(batches, 0);
    const std::lock_guard lock(mutex);
    all.insert(mine.begin(), mine.end());
  });
  EXPECT_EQ(all.size(), 23U);
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 23U);
}

TEST(LoaderTest, AnEpochLeftEarlyEndsItsThreads) {
  in_world(1, [](World& world) {
    auto batches = loader(numbered(1000), world, {.global_batch = 2, .threads = 3, .prefetch = 8});
    for (auto& batch : batches.epoch(0)) {
      EXPECT_EQ(batch.samples, 2);
      break;
    }
  });
}

TEST(LoaderTest, OwnPartsAreReadAsOftenAsTheLongestNeeds) {
  in_world(2, [](World& world) {
    // Rank 0 holds 10 samples, rank 1 holds 4.
    auto batches = loader(numbered(world.rank() == 0 ? 10 : 4), world,
                          {.global_batch = 4, .placement = Placement::kOwnPart});
    EXPECT_EQ(batches.steps_per_epoch(), 5);
    const auto mine = epoch_of(batches, 0);
    EXPECT_EQ(mine.size(), 10U);
    EXPECT_EQ(std::set<std::int64_t>(mine.begin(), mine.end()).size(),
              world.rank() == 0 ? 10U : 4U);
  });
}

TEST(LoaderTest, BatchesThatCannotBeDividedAreRefused) {
  in_world(2, [](World& world) {
    EXPECT_THROW(loader(numbered(10), world, {.global_batch = 1}), BadInput);
    EXPECT_THROW(loader(numbered(10), world, {.global_batch = 3}), BadInput);
    EXPECT_THROW(loader(DatasetPtr(), world, {.global_batch = 2}), BadInput);
  });
}

TEST(LoaderTest, ADataSetThatFailsSaysSoInTheLoop) {
  struct Broken : Dataset {
    std::int64_t size() const override { return 10; }
    Batch batch(std::span<const Sample>) const override { throw BadInput("cannot read it"); }
  };
  in_world(1, [](World& world) {
    auto batches = loader(std::make_shared<Broken>(), world, {.global_batch = 2});
    EXPECT_THROW(epoch_of(batches, 0), BadInput);
  });
}

// Pairs (i, 10 i).
struct Pairs : torch::data::datasets::Dataset<Pairs> {
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {torch::tensor(i), torch::tensor(i * 10)};
  }
  DistributedSampler::OptionalSize size() const override { return 6; }
};

TEST(LoaderTest, TakesDataSetsOfLibTorch) {
  using torch::data::transforms::Stack;
  in_world(1, [](World& world) {
    const LoaderOptions options{.global_batch = 3, .shuffle = false};
    const auto expect_pairs = [](const Loader& batches) {
      EXPECT_THAT(epoch_of(batches, 0), ElementsAre(0, 1, 2, 3, 4, 5));
    };
    expect_pairs(loader(Pairs(), world, options));
    expect_pairs(loader(Pairs().map(Stack<>()), world, options));
    expect_pairs(loader(adapt(Pairs().map(Stack<>())), world, options));
  });
}

struct Floats : torch::data::datasets::Dataset<Floats> {
  torch::data::Example<> get(std::size_t index) override {
    return {torch::full({1, 2, 2}, static_cast<float>(index)), torch::tensor(1)};
  }
  DistributedSampler::OptionalSize size() const override { return 4; }
};

TEST(LoaderTest, TakesDataSetsOfLibTorchWithTransforms) {
  using namespace torch::data::transforms;
  in_world(1, [](World& world) {
    const LoaderOptions options{.global_batch = 4, .shuffle = false};
    auto stacked = loader(Floats().map(Normalize<>(1.0, 2.0)).map(Stack<>()), world, options);
    auto loose = loader(Floats().map(Normalize<>(1.0, 2.0)), world, options);
    for (auto* batches : {&stacked, &loose}) {
      for (auto& batch : batches->epoch(0)) {
        EXPECT_EQ(batch.samples, 4);
        EXPECT_EQ(batch.data.device(), torch::kCPU);
        EXPECT_TRUE(torch::equal(
            batch.data, ((torch::arange(4.0F).view({4, 1, 1, 1}) - 1) / 2).expand({4, 1, 2, 2})));
        EXPECT_EQ(batch.target.sizes(), at::IntArrayRef({4}));
      }
    }
  });
}

// Data alone, without a target.
struct Lone : torch::data::datasets::Dataset<Lone, torch::data::TensorExample> {
  torch::data::TensorExample get(std::size_t index) override {
    return torch::full({2}, static_cast<float>(index));
  }
  DistributedSampler::OptionalSize size() const override { return 4; }
};

TEST(LoaderTest, TakesExamplesWithoutTargets) {
  in_world(1, [](World& world) {
    auto batches = loader(Lone(), world, {.global_batch = 4, .shuffle = false});
    for (auto& batch : batches.epoch(0)) {
      EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({4, 2}));
      EXPECT_FALSE(batch.target.defined());
    }
  });
}

// Sample 2 has another shape; the size is as given.
struct Odd : torch::data::datasets::Dataset<Odd> {
  explicit Odd(DistributedSampler::OptionalSize its_size) : given(its_size) {}
  torch::data::Example<> get(std::size_t index) override {
    return {torch::zeros({index == 2 ? 5 : 4}), torch::tensor(0)};
  }
  DistributedSampler::OptionalSize size() const override { return given; }
  DistributedSampler::OptionalSize given;
};

TEST(LoaderTest, DataSetsOfLibTorchThatCannotBeReadAreRefusedInPlainWords) {
  using torch::data::transforms::Stack;
  const LoaderOptions options{.global_batch = 4, .shuffle = false};
  const auto refusal = [&](const auto& dataset) {
    return outcomes_in_world(1,
                             [&](World& world) {
                               for (auto& batch : loader(dataset, world, options).epoch(0))
                                 EXPECT_EQ(batch.samples, 4);
                             })[0]
        .text;
  };
  const auto shapes = HasSubstr("samples 0 and 2 cannot be in one batch: their data is");
  EXPECT_THAT(refusal(Odd(4)), shapes);
  EXPECT_THAT(refusal(Odd(4).map(Stack<>())), shapes);
  EXPECT_THAT(refusal(Odd(0)), HasSubstr("the data set is empty"));
  EXPECT_THAT(refusal(Odd({})), HasSubstr("does not say its size"));
}

// A DataLoader copies its sampler; each of its epochs must have an order of its own all the same.
TEST(DistributedSamplerTest, GivesADataLoaderANewOrderEachEpoch) {
  in_world(2, [](World& world) {
    struct Numbers : torch::data::datasets::Dataset<Numbers> {
      torch::data::Example<> get(std::size_t index) override {
        return {torch::tensor(static_cast<std::int64_t>(index)), torch::zeros(1)};
      }
      DistributedSampler::OptionalSize size() const override { return 21; }
    };
    auto batches = torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()),
                                                 DistributedSampler(21, world, /*seed=*/4),
                                                 torch::data::DataLoaderOptions().batch_size(5));
    for (const std::int64_t epoch : {0, 1, 2}) {
      std::vector<std::int64_t> seen;
      for (auto& batch : *batches) {
        for (const auto value : values(batch.data)) seen.push_back(value);
      }
      plan::SamplerOptions options{.samples = 21, .seed = 4};
      EXPECT_EQ(seen, plan::shard_samples(options, epoch, world.rank(), world.size()));
    }
  });
}

TEST(DistributedSamplerTest, GoesOnWhereItWasSaved) {
  in_world(1, [](World& world) {
    DistributedSampler first(10, world, 1);
    first.reset();
    first.reset();
    first.next(3);
    torch::serialize::OutputArchive out;
    first.save(out);
    std::stringstream stream;
    out.save_to(stream);
    torch::serialize::InputArchive in;
    in.load_from(stream);
    DistributedSampler second(10, world, 1);
    second.load(in);
    EXPECT_EQ(*first.next(4), *second.next(4));
    first.reset();
    second.reset();
    EXPECT_EQ(*first.next(10), *second.next(10));
  });
}

class DataFiles : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  std::string message_of(const std::string& path) {
    try {
      datasets::load(path, {.context = 8});
    } catch (const BadInput& error) {
      return error.what();
    }
    return "no error";
  }
  Folder folder_;
};

TEST_F(DataFiles, TextBecomesWindowsThatPredictTheirNextCharacters) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "abcdefghij";
  const DataSplits data = datasets::load(file("a.txt", text), {.context = 8});
  EXPECT_TRUE(data.shape.is_text);
  EXPECT_EQ(data.shape.classes, 10);
  const std::int64_t second[] = {1};
  const Batch batch = data.train->batch(samples_of(second));
  EXPECT_THAT(values(batch.data[0]), ElementsAre(8, 9, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(batch.target[0]), ElementsAre(9, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(data.train->size(), 22);
  EXPECT_EQ(data.test->size(), 2);
}

TEST_F(DataFiles, TablesAreNormalisedAndEveryTenthRowTests) {
  std::string table = "x,y,class\n";
  for (int i = 0; i < 40; ++i)
    table += std::to_string(i) + "," + std::to_string(-i) + "," + std::to_string(i % 3) + "\n";
  const DataSplits data = datasets::load(file("a.csv", table), {});
  EXPECT_EQ(data.train->size(), 36);
  EXPECT_EQ(data.test->size(), 4);
  EXPECT_EQ(data.shape.classes, 3);
  EXPECT_THAT(data.shape.sample, ElementsAre(2));
}

TEST_F(DataFiles, WhatIsAbsentOrStrangeGivesOneClearLine) {
  EXPECT_THAT(message_of(folder_ / "none"), HasSubstr("no data at"));
  EXPECT_THAT(message_of(folder_.path()), HasSubstr("neither IDX files"));
  EXPECT_THAT(message_of(file("short.txt", "abc")), HasSubstr("too few"));
  EXPECT_THAT(message_of(file("few.csv", "1,0\n2,1\n")), HasSubstr("at least 10"));
  EXPECT_THAT(message_of(file("bad.csv", "1,0\nx,1\n")), HasSubstr("bad.csv"));
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"})
    file(name, "not an IDX file");
  EXPECT_THAT(message_of(folder_.path()), HasSubstr("train-images-idx3-ubyte"));
}

TEST(Datasets, FashionMnistIsNormalised) {
  if (!base::exists("/usr/share/datasets/fashion-mnist"))
    GTEST_SKIP() << "apt install dataset-fashion-mnist";
  const DataSplits data = datasets::load("fashion-mnist");
  EXPECT_EQ(data.train->size(), 60'000);
  EXPECT_EQ(data.test->size(), 10'000);
  EXPECT_THAT(data.shape.sample, ElementsAre(1, 28, 28));
  EXPECT_EQ(data.shape.classes, 10);
  std::vector<std::int64_t> all(60'000);
  std::iota(all.begin(), all.end(), 0);
  const Batch batch = data.train->batch(samples_of(all));
  EXPECT_NEAR(batch.data.to(torch::kFloat64).mean().item<double>(), 0, 1e-5);
  EXPECT_NEAR(batch.data.to(torch::kFloat64).std().item<double>(), 1, 1e-5);
  EXPECT_EQ(torch::bincount(batch.target)[9].item<std::int64_t>(), 6000);
}

TEST(Datasets, SyntheticDataDependsOnItsSeedAlone) {
  const std::int64_t some[] = {0, 7, 99};
  const auto a = datasets::load("synthetic", {.seed = 3}).train->batch(samples_of(some));
  const auto b = datasets::load("synthetic", {.seed = 3}).train->batch(samples_of(some));
  const auto c = datasets::load("synthetic", {.seed = 4}).train->batch(samples_of(some));
  EXPECT_TRUE(torch::equal(a.data, b.data));
  EXPECT_FALSE(torch::equal(a.data, c.data));
}

TEST(PrefetcherTest, GivesInOrderAndRethrowsForTheBatchThatFailed) {
  const auto read = [](std::int64_t number) -> Batch {
    if (number == 5) throw BadInput("five");
    return {torch::tensor(number), {}, 1};
  };
  for (const int threads : {0, 1, 4}) {
    data::Prefetcher prefetcher(8, read, {threads, 3});
    for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(prefetcher.next()->data.item<std::int64_t>(), i);
    EXPECT_THROW(prefetcher.next(), BadInput);
    EXPECT_EQ(prefetcher.next()->data.item<std::int64_t>(), 6);
    EXPECT_TRUE(prefetcher.next());
    EXPECT_FALSE(prefetcher.next());
  }
}

}  // namespace
}  // namespace lockstep::testing
