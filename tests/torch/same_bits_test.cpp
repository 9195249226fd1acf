// One job, one hash: whatever the number of workers, the engine, the algorithm and the size of buckets. Workers are threads
// of this process. `make test` takes a sample in which every two choices meet; LOCKSTEP_TEST_FULL takes all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/torch/nets.h"
#include "tests/torch/optimizers.h"
#include "torch/models/models.h"

namespace lockstep::testing::same_bits {
namespace {

// A run is one level of each factor. Those up to kShards make the job, which alone decides the hash.
enum Factor : std::size_t {
  kModel,
  kOptimizer,
  kClip,
  kShards,
  kWorkers,
  kEngine,
  kAlgorithm,
  kBucket,
  kFactors
};
using Levels = std::vector<std::string>;
using Choices = std::array<std::size_t, kFactors>;  // a level of each factor, by position

// Without GPUs there is no nccl.
std::vector<Levels> make_factors() {
  Levels built;
  for (const EngineInfo& engine : engines()) {
    if (engine.built && engine.name != "mpi") built.push_back(engine.name);
  }
  built.emplace_back(kTcpHosts);
  return {{"mlp", "cnn", "gpt"},
          all_optimizer_names(),
          {"0", "0.5"},
          {"8", "1", "2", "3", "5", "6", "7"},
          {"1", "2", "3", "4", "5", "8"},
          built,
          {"automatic", "halving-doubling"},
          {"65536", "1048576", "26214400"}};
}
const std::vector<Levels>& factors() {
  static const std::vector<Levels> all = make_factors();
  return all;
}

// The runs below are of SGD and AdamW. The rarer optimizers have a test of their own.
constexpr std::size_t kUsualOptimizers = 2;
std::size_t levels_of(std::size_t factor) {
  return factor == kOptimizer ? kUsualOptimizers : factors()[factor].size();
}

const std::string& level(const Choices& run, Factor factor) {
  return factors()[factor][run[factor]];
}
int number(const Choices& run, Factor factor) {
  return std::atoi(level(run, factor).c_str());
}
std::string text_of(const Choices& run) {
  return level(run, kModel) + ", " + level(run, kOptimizer) + ", clip " + level(run, kClip) + ", " +
         level(run, kShards) + " shards, " + level(run, kWorkers) + " workers, " +
         level(run, kEngine) + ", " + level(run, kAlgorithm) + ", buckets of " +
         level(run, kBucket);
}

// A worker hosts at least one shard.
bool possible(std::size_t shards, std::size_t workers) {
  return std::atoi(factors()[kWorkers][workers].c_str()) <=
         std::atoi(factors()[kShards][shards].c_str());
}

using Pair =
    std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;  // factor, level, twice

std::set<Pair> all_pairs() {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < kFactors; ++a) {
    for (std::size_t b = a + 1; b < kFactors; ++b) {
      for (std::size_t i = 0; i < levels_of(a); ++i) {
        for (std::size_t j = 0; j < levels_of(b); ++j) {
          if (a == kShards && b == kWorkers && !possible(i, j)) continue;
          pairs.emplace(a, i, b, j);
        }
      }
    }
  }
  return pairs;
}

// The level of `factor` that adds most pairs to those of the factors already `fixed`.
std::size_t best_level(const Choices& run, const std::set<std::size_t>& fixed, std::size_t factor,
                       const std::set<Pair>& missing) {
  std::size_t best = 0;
  int most = -1;
  for (std::size_t i = 0; i < levels_of(factor); ++i) {
    if (factor == kShards && fixed.contains(kWorkers) && !possible(i, run[kWorkers])) continue;
    if (factor == kWorkers && fixed.contains(kShards) && !possible(run[kShards], i)) continue;
    int gain = 0;
    for (const std::size_t other : fixed) {
      gain += other < factor ? missing.contains({other, run[other], factor, i})
                             : missing.contains({factor, i, other, run[other]});
    }
    if (gain > most) {
      most = gain;
      best = i;
    }
  }
  return best;
}

// Runs that hold every pair, one after another: each begins with a pair that is missing, and adds the level of each
// other factor that brings the most.
std::vector<Choices> pairwise_sample() {
  std::set<Pair> missing = all_pairs();
  std::vector<Choices> runs;
  while (!missing.empty()) {
    // From the end: engines and workers first, which need the most runs.
    const auto [a, i, b, j] = *missing.rbegin();
    Choices run{};
    run[a] = i;
    run[b] = j;
    std::set<std::size_t> fixed = {a, b};
    for (std::size_t factor = 0; factor < kFactors; ++factor) {
      if (fixed.contains(factor)) continue;
      run[factor] = best_level(run, fixed, factor, missing);
      fixed.insert(factor);
    }
    for (std::size_t x = 0; x < kFactors; ++x) {
      for (std::size_t y = x + 1; y < kFactors; ++y) missing.erase({x, run[x], y, run[y]});
    }
    runs.push_back(run);
  }
  return runs;
}

// The job of a run: whatever does not decide the hash is at its first level.
Choices job_of(Choices run) {
  for (const Factor factor : {kWorkers, kEngine, kAlgorithm, kBucket}) run[factor] = 0;
  return run;
}

// Everything at 8 shards; with other numbers of them, everything for one cnn.
std::vector<Choices> all_runs() {
  std::vector<Choices> runs = {Choices{}};
  for (std::size_t factor = 0; factor < kFactors; ++factor) {
    std::vector<Choices> longer;
    for (Choices run : runs) {
      for (run[factor] = 0; run[factor] < levels_of(factor); ++run[factor]) longer.push_back(run);
    }
    runs = std::move(longer);
  }
  std::erase_if(runs, [](const Choices& run) {
    const bool one_job = run[kModel] == 1 && run[kOptimizer] == 0 && run[kClip] == 1;
    return !possible(run[kShards], run[kWorkers]) || (run[kShards] != 0 && !one_job);
  });
  return runs;
}

constexpr int kSteps = 12;
constexpr std::uint64_t kSeed = 3;
// The last batch of an epoch is short for every number of shards, and leaves most of 8 empty. With 2 shards and more
// the steps reach it, and go on into the next epoch.
constexpr std::int64_t kSamples = 35;
constexpr std::int64_t kClasses = 10;
constexpr std::int64_t kWidth = 400;  // an mlp of 1.4 MB, so that all sizes of buckets differ
constexpr std::int64_t kContext = 8;
constexpr std::int64_t kVocabulary = 40;

DataShape shape_for(const std::string& model) {
  if (model == "gpt") return {{kContext}, kVocabulary, true};
  if (model == "cnn") return {{1, 12, 12}, kClasses, false};
  return {{64}, kClasses, false};
}

DatasetPtr data_for(const std::string& model) {
  const DataShape shape = shape_for(model);
  auto generator = at::detail::createCPUGenerator(kSeed);
  std::vector<std::int64_t> sizes = shape.sample;
  sizes.insert(sizes.begin(), kSamples);
  if (model == "gpt") {
    const auto tokens = torch::randint(kVocabulary, sizes, generator, torch::kInt64);
    return tensor_dataset(tokens, tokens.roll(-1, 1));
  }
  const auto target = torch::randint(kClasses, {kSamples}, generator, torch::kInt64);
  return tensor_dataset(torch::randn(sizes, generator), target);
}

std::shared_ptr<models::Net> model_for(const std::string& model, std::uint64_t seed) {
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(seed);
  if (model == "mlp") return models::make_mlp(shape_for(model), kWidth);
  return models::make({.name = model}, shape_for(model));
}

std::shared_ptr<optim::Optimizer> optimizer_for(const Choices& run, Replica& model) {
  std::shared_ptr<optim::Optimizer> optimizer = make_optimizer(level(run, kOptimizer), model);
  optimizer->set_clip_norm(std::atof(level(run, kClip).c_str()));
  return optimizer;
}

// As `lockstep train` puts them together.
TrainerParts parts_for(const Choices& run, World& world, std::uint64_t seed) {
  const std::string& name = level(run, kModel);
  auto net = model_for(name, seed);
  auto model = data_parallel(
      net, world,
      {.bucket_bytes = static_cast<std::size_t>(number(run, kBucket)),
       .algorithm = level(run, kAlgorithm) == "automatic" ? Algorithm::kAutomatic
                                                          : Algorithm::kHalvingDoubling});
  TrainerParts parts{.model = model,
                     .module = net,
                     .optimizer = optimizer_for(run, model),
                     .train = data_for(name)};
  parts.loss = [net](const Batch& batch) { return models::loss(*net, batch); };
  return parts;
}

std::string hash_of(const Choices& run, World& world, std::uint64_t seed) {
  TrainerOptions options;
  options.steps = kSteps;
  options.shards = number(run, kShards);
  options.global_batch = 2 * options.shards;
  options.seed = seed;
  Trainer trainer(world, parts_for(run, world, seed), options);
  const TrainingResult result = trainer.run();
  EXPECT_TRUE(result.replicas_identical) << text_of(run);
  return result.weights_sha256;
}

// Of a world of threads; every worker must have the same.
std::string hash_of(const Choices& run) {
  std::mutex mutex;
  std::set<std::string> hashes;
  in_world(number(run, kWorkers), level(run, kEngine), [&](World& world) {
    const std::string hash = hash_of(run, world, kSeed);
    const std::lock_guard lock(mutex);
    hashes.insert(hash);
  });
  EXPECT_EQ(hashes.size(), 1U) << text_of(run);
  return *hashes.begin();
}

// Of the same job on one worker that has no engine.
std::string hash_alone(const Choices& run, std::uint64_t seed = kSeed) {
  World alone = World::over(connect_alone());
  return hash_of(run, alone, seed);
}

class SameBits : public ::testing::Test {
 protected:
  SameBits() { at::set_num_threads(1); }

  // Each run has the hash of its job alone.
  static void check(const std::vector<Choices>& runs) {
    std::map<Choices, std::string> alone;
    for (const Choices& run : runs) {
      const Choices job = job_of(run);
      auto [expected, is_new] = alone.try_emplace(job);
      if (is_new) expected->second = hash_alone(job);
      EXPECT_EQ(hash_of(run), expected->second) << text_of(run);
    }
    std::set<std::string> hashes;
    for (const auto& [job, hash] : alone) hashes.insert(hash);
    EXPECT_EQ(hashes.size(), alone.size()) << "different jobs have the same hash";
    std::cout << runs.size() << " runs of " << alone.size() << " jobs\n";
  }
};

TEST_F(SameBits, TheSampleHoldsEveryPair) {
  const std::vector<Choices> runs = pairwise_sample();
  for (const auto& [a, i, b, j] : all_pairs()) {
    const bool held = std::any_of(
        runs.begin(), runs.end(),
        [&, a = a, i = i, b = b, j = j](const Choices& run) { return run[a] == i && run[b] == j; });
    EXPECT_TRUE(held) << factors()[a][i] << " with " << factors()[b][j];
  }
  for (const Choices& run : runs)
    EXPECT_TRUE(possible(run[kShards], run[kWorkers])) << text_of(run);
  EXPECT_LE(runs.size(), 45U) << "more than the test has time for";
}

TEST_F(SameBits, EveryTwoChoicesTogetherGiveTheHashOfOneWorker) {
  check(pairwise_sample());
}

TEST_F(SameBits, RarerOptimizersGiveOneHashOnOneToThreeWorkers) {
  std::vector<Choices> runs;
  Choices run{};
  run[kShards] = 3;  // which is three shards
  for (run[kOptimizer] = kUsualOptimizers; run[kOptimizer] < all_optimizer_names().size();
       ++run[kOptimizer]) {
    for (run[kWorkers] = 0; number(run, kWorkers) <= 3; ++run[kWorkers]) runs.push_back(run);
  }
  check(runs);
}

TEST_F(SameBits, AnotherSeedIsAnotherHash) {
  const Choices run{};
  EXPECT_NE(hash_alone(run, kSeed), hash_alone(run, kSeed + 1));
}

// A case for each job, so that several processes can share them (GTEST_TOTAL_SHARDS).
class SameBitsOfJob : public SameBits, public ::testing::WithParamInterface<Choices> {};

TEST_P(SameBitsOfJob, AllChoicesTogetherGiveTheHashOfOneWorker) {
  if (std::getenv("LOCKSTEP_TEST_FULL") == nullptr)
    GTEST_SKIP() << "minutes for all of them: make test-full sets LOCKSTEP_TEST_FULL";
  std::vector<Choices> runs = all_runs();
  std::erase_if(runs, [](const Choices& run) { return job_of(run) != GetParam(); });
  check(runs);
}

std::set<Choices> all_jobs() {
  std::set<Choices> jobs;
  for (const Choices& run : all_runs()) jobs.insert(job_of(run));
  return jobs;
}
std::string name_of(const ::testing::TestParamInfo<Choices>& job) {
  return level(job.param, kModel) + "_" + level(job.param, kOptimizer) +
         (job.param[kClip] == 0 ? "" : "_clipped") + "_" + level(job.param, kShards) + "_shards";
}
INSTANTIATE_TEST_SUITE_P(Every, SameBitsOfJob, ::testing::ValuesIn(all_jobs()), name_of);

}  // namespace
}  // namespace lockstep::testing::same_bits
