#include "plan/sampler.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "base/hash.h"

namespace lockstep::plan {
namespace {

// The first 16 digits of the SHA-256 of an order, as little-endian 64-bit numbers.
template <typename T>
std::string digest(const std::vector<T>& order) {
  base::ByteWriter bytes;
  for (const T sample : order) bytes.put(static_cast<std::int64_t>(sample));
  return base::to_hex(base::sha256(bytes.bytes())).substr(0, 16);
}

template <typename T>
std::vector<std::int64_t> head(const std::vector<T>& order, std::size_t count) {
  return {order.begin(),
          order.begin() + static_cast<std::ptrdiff_t>(std::min(count, order.size()))};
}

struct PermutationVector {
  std::int64_t n;
  std::uint64_t seed;
  std::vector<std::int64_t> head;
  std::string digest;
};

// Made with PyTorch 1.13; each line again by
//   python3 -c "import hashlib,struct,torch; torch.manual_seed(SEED); p=torch.randperm(N).tolist();
//   print(p[:6], hashlib.sha256(struct.pack(f'<{len(p)}q',*p)).hexdigest()[:16])"
const std::vector<PermutationVector> kPermutations = {
    {1, 0ULL, {0}, "af5570f5a1810b7a"},
    {2, 0ULL, {0, 1}, "9d34149fbd1fe777"},
    {2, 1ULL, {1, 0}, "4cbbd8ca5215b8d1"},
    {7, 0ULL, {4, 0, 5, 3, 2, 6}, "3c3a1baad538faa4"},
    {7, 1ULL, {0, 6, 1, 3, 5, 2}, "b1202fa6ac35b5ab"},
    {7, 42ULL, {1, 6, 3, 5, 4, 0}, "d361d03c3d822746"},
    {11, 0ULL, {10, 0, 4, 3, 5, 8}, "70f5428df78789ba"},
    {11, 42ULL, {6, 8, 9, 2, 1, 10}, "31b120544ae9df08"},
    {11, 4294967297ULL, {0, 10, 2, 3, 7, 6}, "6aa4a413ee86468c"},
    {1000, 0ULL, {44, 37, 675, 775, 947, 209}, "cee4a88ef6120e8e"},
    {1000, 42ULL, {542, 618, 816, 68, 94, 215}, "ac5c22de20fc5d16"},
    {1000, 9223372036854775813ULL, {411, 49, 291, 695, 678, 515}, "af94994a469c1dbd"},
    {60000, 0ULL, {36044, 10678, 57327, 55074, 21567, 15479}, "4c226c41bdd65c9e"},
    {60000, 1ULL, {35845, 27522, 33254, 23645, 11299, 16178}, "1e8385d7899b4c8f"},
    {60000, 42ULL, {37542, 43087, 2992, 25810, 39634, 6425}, "7cd1a1e010482b25"},
};

TEST(RandomPermutation, IsTorchRandperm) {
  for (const PermutationVector& expected : kPermutations) {
    const auto order = random_permutation(expected.n, expected.seed);
    EXPECT_EQ(head(order, 6), expected.head) << "n " << expected.n << " seed " << expected.seed;
    EXPECT_EQ(digest(order), expected.digest) << "n " << expected.n << " seed " << expected.seed;
  }
  EXPECT_TRUE(random_permutation(0, 1).empty());
}

TEST(RandomPermutation, RefusesSizesOnWhichVersionsOfPytorchDisagree) {
  EXPECT_THROW(random_permutation(kMostShuffledSamples + 1, 0), BadInput);
  const SamplerOptions many{.samples = kMostShuffledSamples + 1};
  EXPECT_THROW(EpochOrder(many, 0), BadInput);
  EXPECT_THROW(epoch_entries(many, 2), BadInput);
}

struct SamplerVector {
  std::int64_t samples;
  int shards;
  int shard;
  bool shuffle;
  std::uint64_t seed;
  std::int64_t epoch;
  Remainder remainder;
  std::size_t count;
  std::vector<std::int64_t> head;
  std::string digest;
};

constexpr auto kPad = Remainder::kPad;
constexpr auto kDrop = Remainder::kDrop;

// Made with PyTorch 1.13; each line again by
//   python3 -c "import hashlib,struct; from torch.utils.data import DistributedSampler as D;
//   d=D(range(SAMPLES),SHARDS,SHARD,SHUFFLE,SEED,DROP); d.set_epoch(EPOCH); l=list(d);
//   print(len(l), l[:5], hashlib.sha256(struct.pack(f'<{len(l)}q',*l)).hexdigest()[:16])"
const std::vector<SamplerVector> kSamplers = {
    {7, 4, 3, true, 0, 0, kPad, 2, {3, 4}, "fd223b85f4dc2018"},
    {7, 4, 3, true, 0, 0, kDrop, 1, {3}, "35be322d094f9d15"},
    {3, 8, 7, true, 5, 2, kPad, 1, {1}, "7c9fa136d4413fa6"},
    {3, 8, 7, true, 5, 2, kDrop, 0, {}, "e3b0c44298fc1c14"},
    {11, 4, 1, true, 0, 3, kPad, 3, {0, 5, 10}, "abf703c6840ca967"},
    {11, 4, 1, true, 0, 3, kDrop, 2, {0, 5}, "b15c0825f56c18d8"},
    {11, 4, 3, false, 0, 0, kPad, 3, {3, 7, 0}, "219ce956d48cfd13"},
    {11, 4, 2, false, 9, 1, kDrop, 2, {2, 6}, "d162ed45b72302f8"},
    {1000, 7, 0, true, 42, 1, kPad, 143, {588, 343, 871, 466, 257}, "cc2fa2d1cb29b887"},
    {1000, 7, 6, true, 42, 1, kPad, 143, {932, 224, 739, 695, 896}, "d985c49195d91056"},
    {1000, 7, 6, true, 42, 1, kDrop, 142, {932, 224, 739, 695, 896}, "d7b4cf622cda7ec5"},
    {60000,
     8,
     5,
     true,
     1234,
     9,
     kPad,
     7500,
     {45922, 19751, 8747, 27048, 45913},
     "cc135e49652687aa"},
    {60000,
     64,
     63,
     true,
     4294967295,
     1,
     kPad,
     938,
     {6315, 19434, 3797, 23593, 24433},
     "44e4a91b2012bec7"},
    {60000,
     64,
     63,
     true,
     4294967295,
     1,
     kDrop,
     937,
     {6315, 19434, 3797, 23593, 24433},
     "439da0dc52c780d4"},
};

TEST(ShardSamples, AreThoseOfPytorchsDistributedSampler) {
  for (std::size_t i = 0; i < kSamplers.size(); ++i) {
    const SamplerVector& expected = kSamplers[i];
    const SamplerOptions options{.samples = expected.samples,
                                 .seed = expected.seed,
                                 .shuffle = expected.shuffle,
                                 .remainder = expected.remainder};
    const auto samples = shard_samples(options, expected.epoch, expected.shard, expected.shards);
    EXPECT_EQ(samples.size(), expected.count) << "vector " << i;
    EXPECT_EQ(head(samples, 5), expected.head) << "vector " << i;
    EXPECT_EQ(digest(samples), expected.digest) << "vector " << i;
  }
}

// How often each sample is visited over all shards.
std::vector<int> visits(const SamplerOptions& options, std::int64_t epoch, int shards) {
  std::vector<int> count(static_cast<std::size_t>(options.samples), 0);
  for (int shard = 0; shard < shards; ++shard) {
    for (const std::int64_t s : shard_samples(options, epoch, shard, shards)) ++count.at(s);
  }
  return count;
}

TEST(ShardSamples, PadKeepAndDropVisitWhatTheySay) {
  for (std::int64_t n = 1; n <= 40; ++n) {
    for (int shards = 1; shards <= 12; ++shards) {
      SamplerOptions options{.samples = n, .seed = 3};
      const auto [least, most] = [&] {
        const auto count = visits(options, 1, shards);
        return std::pair{*std::min_element(count.begin(), count.end()),
                         *std::max_element(count.begin(), count.end())};
      }();
      ASSERT_GE(least, 1);
      ASSERT_LE(most, least + 1);
      options.remainder = Remainder::kKeep;
      const auto kept = visits(options, 1, shards);
      ASSERT_EQ(std::count(kept.begin(), kept.end(), 1), n);
      options.remainder = Remainder::kDrop;
      const auto cut = visits(options, 1, shards);
      ASSERT_EQ(std::count(cut.begin(), cut.end(), 1), n / shards * shards);
      ASSERT_EQ(std::count(cut.begin(), cut.end(), 0), n % shards);
    }
  }
}

TEST(ShardSamples, NoSampleIsLeftOutInEveryEpoch) {
  const SamplerOptions options{.samples = 11, .seed = 0, .remainder = Remainder::kDrop};
  std::vector<int> total(11, 0);
  for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
    const auto count = visits(options, epoch, 4);
    for (std::size_t i = 0; i < count.size(); ++i) total[i] += count[i];
  }
  // 200 · 8 / 11 ≈ 145 each, σ ≈ 6.3.
  EXPECT_GT(*std::min_element(total.begin(), total.end()), 145 - 40);
  EXPECT_LE(*std::max_element(total.begin(), total.end()), 145 + 40);
}

TEST(EvaluationSamples, VisitEverySampleOnceWithoutPaddingOrDropping) {
  for (std::int64_t n = 1; n <= 40; ++n) {
    for (int shards = 1; shards <= 50; ++shards) {
      std::vector<int> count(static_cast<std::size_t>(n), 0);
      for (int shard = 0; shard < shards; ++shard) {
        const auto samples = evaluation_samples(n, shard, shards);
        ASSERT_TRUE(std::is_sorted(samples.begin(), samples.end()));
        for (const std::int64_t s : samples) ++count.at(s);
      }
      ASSERT_EQ(std::count(count.begin(), count.end(), 1), n);
    }
  }
  EXPECT_EQ(evaluation_samples(7, 1, 3), (std::vector<std::int64_t>{1, 4}));
}

TEST(ShardSamples, WithoutShufflingHasNoLimitAndNeedsNoMemory) {
  const std::int64_t many = std::int64_t{1} << 40;
  const EpochOrder order({.samples = many, .seed = 0, .shuffle = false}, 0);
  EXPECT_EQ(order.sample_at(many - 1), many - 1);
  EXPECT_EQ(order.sample_at(many), 0);
}

TEST(ShardSamples, RefusesWhatDoesNotExist) {
  EXPECT_THROW(shard_samples({.samples = 0}, 0, 0, 1), BadInput);
  EXPECT_THROW(shard_samples({.samples = -1}, 0, 0, 1), BadInput);
  EXPECT_THROW(shard_samples({.samples = 5}, -1, 0, 1), BadInput);
  EXPECT_THROW(shard_samples({.samples = 5}, 0, 2, 2), BadInput);
  EXPECT_THROW(shard_samples({.samples = 5}, 0, -1, 2), BadInput);
  EXPECT_THROW(shard_samples({.samples = 5}, 0, 0, 0), BadInput);
  EXPECT_THROW(evaluation_samples(INT64_MAX, 0, 2), BadInput);
}

}  // namespace
}  // namespace lockstep::plan
