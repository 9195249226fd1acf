#include "plan/position.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <random>

namespace lockstep::plan {
namespace {

using Samples = std::vector<std::int64_t>;

DataOptions data(std::int64_t samples, std::int64_t batch, int shards) {
  return {.samples = samples, .global_batch = batch, .shards = shards, .seed = 3};
}

Samples all_shards_interleaved(Batches& batches, std::int64_t step) {
  const int shards = batches.options().shards;
  std::vector<Samples> parts;
  for (int shard = 0; shard < shards; ++shard) parts.push_back(batches.samples(step, shard));
  Samples batch;
  for (std::size_t row = 0; row < parts[0].size(); ++row) {
    for (const Samples& part : parts) {
      if (row < part.size()) batch.push_back(part[row]);
    }
  }
  return batch;
}

// Rank 1 of 4 in epochs 0 and 1, made with PyTorch 1.13; again by
//   python3 -c "from torch.utils.data import DataLoader as L, DistributedSampler as D;
//   d=D(range(23),4,1,True,3,SAMPLER_DROP); d.set_epoch(EPOCH);
//   print([b.tolist() for b in L(range(23),2,sampler=d,drop_last=LOADER_DROP)])"
TEST(BatchesTest, AreThoseOfPytorchsDataLoader) {
  struct Case {
    Remainder remainder;
    LastBatch last;
    std::vector<Samples> rank_1;
  };
  const std::vector<Case> cases = {
      {Remainder::kPad, LastBatch::kKeep, {{9, 17}, {16, 22}, {5, 8}, {13, 19}, {4, 9}, {6, 8}}},
      {Remainder::kPad, LastBatch::kDrop, {{9, 17}, {16, 22}, {5, 8}, {13, 19}, {4, 9}, {6, 8}}},
      {Remainder::kDrop, LastBatch::kKeep, {{9, 17}, {16, 22}, {5}, {13, 19}, {4, 9}, {6}}},
      {Remainder::kDrop, LastBatch::kDrop, {{9, 17}, {16, 22}, {13, 19}, {4, 9}}},
  };
  for (const Case& expected : cases) {
    DataOptions options = data(23, 8, 4);
    options.remainder = expected.remainder;
    options.last_batch = expected.last;
    Batches batches(options);
    ASSERT_EQ(batches.steps_per_epoch() * 2, static_cast<std::int64_t>(expected.rank_1.size()));
    for (std::size_t step = 0; step < expected.rank_1.size(); ++step) {
      EXPECT_EQ(batches.samples(static_cast<std::int64_t>(step), 1), expected.rank_1[step]);
    }
  }
}

TEST(BatchesTest, OfAShardAreItsSamplerListInPieces) {
  for (const Remainder remainder : {Remainder::kKeep, Remainder::kPad, Remainder::kDrop}) {
    for (const std::int64_t n : {8, 23, 24, 25, 31}) {
      DataOptions options = data(n, 8, 4);
      options.remainder = remainder;
      Batches batches(options);
      const SamplerOptions sampler{.samples = n, .seed = 3, .remainder = remainder};
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        for (int shard = 0; shard < 4; ++shard) {
          Samples joined;
          for (std::int64_t i = 0; i < batches.steps_per_epoch(); ++i) {
            const auto part = batches.samples(epoch * batches.steps_per_epoch() + i, shard);
            joined.insert(joined.end(), part.begin(), part.end());
          }
          EXPECT_EQ(joined, shard_samples(sampler, epoch, shard, 4));
        }
      }
    }
  }
}

TEST(BatchesTest, ShardsOfAStepAreTheNextEntriesOfTheEpochWhateverTheNumberOfShards) {
  for (const int shards : {1, 2, 3, 4, 6, 12}) {
    Batches batches(data(31, 12, shards));
    Batches alone(data(31, 12, 1));
    for (std::int64_t step = 0; step < 7; ++step) {
      EXPECT_EQ(all_shards_interleaved(batches, step), alone.samples(step, 0))
          << shards << " shards";
    }
  }
}

TEST(BatchesTest, KeptLastBatchVisitsEverySampleOncePerEpoch) {
  for (std::int64_t n = 1; n <= 30; ++n) {
    Batches batches(data(n, 6, 3));
    std::vector<int> visits(static_cast<std::size_t>(n), 0);
    for (std::int64_t i = 0; i < batches.steps_per_epoch(); ++i) {
      for (const auto s : all_shards_interleaved(batches, 5 * batches.steps_per_epoch() + i)) {
        ++visits.at(s);
      }
    }
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), n);
  }
}

TEST(BatchesTest, AnyStepIsTheSameAskedForDirectlyOrInTurn) {
  const DataOptions options = data(101, 8, 4);
  Batches in_turn(options);
  std::vector<Samples> expected;
  for (std::int64_t step = 0; step < 60; ++step) expected.push_back(in_turn.samples(step, 2));
  std::mt19937 random(5);
  Batches jumping(options);
  for (int i = 0; i < 200; ++i) {
    const auto step = static_cast<std::int64_t>(random() % 60);
    ASSERT_EQ(jumping.samples(step, 2), expected[step]);
    ASSERT_EQ(Batches(options).samples(step, 2), expected[step]);
  }
}

TEST(BatchesTest, PositionNamesEpochAndPlace) {
  const Batches batches(data(21, 8, 4));
  EXPECT_EQ(batches.steps_per_epoch(), 3);
  EXPECT_EQ(batches.position(0), (Position{0, 0, 0, 8}));
  EXPECT_EQ(batches.position(2), (Position{0, 2, 16, 5}));
  EXPECT_EQ(batches.position(3), (Position{1, 0, 0, 8}));
  EXPECT_EQ(batches.position(3'000'000'000'001), (Position{1'000'000'000'000, 1, 8, 8}));
}

TEST(BatchesTest, WeightsAreOneForFullShardsAndAddUpToTheBatch) {
  const Batches batches(data(21, 8, 4));
  for (int shard = 0; shard < 4; ++shard) EXPECT_EQ(batches.weight(0, shard), 1.0);
  // Five samples: 2, 1, 1, 1 of 2.
  EXPECT_EQ(batches.weight(2, 0), 1.0);
  EXPECT_EQ(batches.weight(2, 3), 0.5);
  const Batches thin(data(9, 8, 4));
  EXPECT_EQ(thin.count(1, 0), 1);
  EXPECT_EQ(thin.count(1, 1), 0);
  EXPECT_EQ(thin.weight(1, 1), 0.0);
}

TEST(BatchesTest, RefuseOptionsThatGiveNoBatch) {
  EXPECT_THROW(Batches(data(10, 7, 2)), BadInput);
  EXPECT_THROW(Batches(data(10, 0, 1)), BadInput);
  EXPECT_THROW(Batches(data(10, 4, 0)), BadInput);
  EXPECT_THROW(Batches(data(0, 4, 2)), BadInput);
  DataOptions few = data(7, 8, 4);
  few.last_batch = LastBatch::kDrop;
  EXPECT_THROW(Batches{few}, BadInput);
  Batches good(data(7, 8, 4));
  EXPECT_THROW(good.samples(-1, 0), BadInput);
  EXPECT_THROW(good.samples(0, 4), BadInput);
}

}  // namespace
}  // namespace lockstep::plan
