// Where samples come from: draws by weight, streams, token files. In loaders, Jobs and Trainers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>
#include <lockstep/errors.h>
#include <lockstep/metrics.h>
#include <lockstep/step.h>
#include <lockstep/stream.h>
#include <lockstep/trainer.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "plan/sampler.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::sources {
namespace {

using loops::job_options;
using loops::One;
using loops::same_on_all;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(const torch::Tensor& tensor) {
  const auto host = tensor.contiguous();
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

Numbers samples_in(Epoch epoch) {
  Numbers seen;
  for (auto& batch : epoch) {
    EXPECT_EQ(batch.samples, batch.data.size(0));
    for (const auto number : numbers_of(batch.data)) seen.push_back(number);
  }
  return seen;
}

DatasetPtr arranged(std::int64_t count) {
  return tensor_dataset(torch::arange(count), torch::arange(count));
}

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

// Batches of 12 and of 3: half of the workers have none of the second. It is the first that the second loop sees.
TEST(EvaluationLoader, AWorkerWithoutSamplesRunsTheSameLoop) {
  in_world(6, [&](World& world) {
    const auto data = tensor_dataset(torch::ones({15, 3}), torch::zeros({15}, torch::kInt64));
    const auto batches = loader(
        data, world, {.global_batch = 12, .shuffle = false, .uneven = Uneven::kKeep, .threads = 0});
    for (const std::int64_t first_step : {0, 1}) {
      Metrics metrics(world, {"right"});
      for (auto& batch : batches.epoch(0, first_step)) {
        const auto output = torch::matmul(batch.data, torch::eye(3));
        EXPECT_EQ(output.size(0), batch.samples);
        metrics.add("right", (output.argmax(1) == batch.target).sum(), batch.samples);
      }
      const Averages all = metrics.reduce();
      EXPECT_EQ(all.mean("right"), 1);
      EXPECT_EQ(all.weight("right"), first_step == 0 ? 15 : 3);
    }
  });
}

// Weights of the samples of loops::data_of().
WeightedSampling weighted(bool replacement = true) {
  WeightedSampling sampling{.draws = replacement ? 40 : 20, .replacement = replacement};
  for (std::int64_t i = 0; i < loops::kSamples; ++i)
    sampling.weights.push_back(i % 3 == 0 ? 0 : static_cast<double>(i));
  return sampling;
}

TEST(WeightedLoader, DrawsTheSamplesOfThePlanFromAnyStepOn) {
  const WeightedSampling sampling{.weights = {0, 1, 5, 0, 2}, .draws = 11};
  in_world(2, [&](World& world) {
    const auto batches =
        loader(arranged(5), world, {.global_batch = 4, .seed = 9, .weighted = sampling});
    EXPECT_EQ(batches.steps_per_epoch(), 3);
    const plan::SamplerOptions options{.samples = 5,
                                       .seed = 9,
                                       .weights = std::make_shared<plan::WeightedDraws>(
                                           sampling.weights, plan::DrawOptions{.draws = 11})};
    const auto expected = plan::shard_samples(options, 3, world.rank(), world.size());
    EXPECT_EQ(samples_in(batches.epoch(3)), expected);
    EXPECT_EQ(samples_in(batches.epoch(3, 1)), Numbers(expected.begin() + 2, expected.end()));
    EXPECT_TRUE(samples_in(batches.epoch(3, 3)).empty());
    EXPECT_THROW(batches.epoch(3, 4), BadInput);
    DistributedSampler sampler(sampling, world, 9);
    sampler.set_epoch(3);
    sampler.reset();
    const auto all = sampler.next(100).value();
    EXPECT_EQ(Numbers(all.begin(), all.end()), expected);
  });
}

// A data set that shows the seeds of its samples.
struct Seeds : Dataset {
  std::int64_t size() const override { return 3; }
  Batch batch(std::span<const Sample> samples) const override {
    Numbers seeds;
    for (const Sample& sample : samples) seeds.push_back(static_cast<std::int64_t>(sample.seed));
    return {torch::tensor(seeds), {}, static_cast<std::int64_t>(samples.size())};
  }
};

TEST(WeightedLoader, ASampleThatComesAgainHasAnotherSeed) {
  in_world(1, [&](World& world) {
    for (const auto placement : {Placement::kEverywhere, Placement::kOwnPart}) {
      const auto seeds = samples_in(loader(std::make_shared<Seeds>(), world,
                                           {.global_batch = 4,
                                            .placement = placement,
                                            .weighted = {.weights = {0, 1, 0}, .draws = 16}})
                                        .epoch(0));
      EXPECT_EQ(std::set<std::int64_t>(seeds.begin(), seeds.end()).size(), 16U);
    }
  });
}

TEST(WeightedLoader, WhatCannotBeDrawnIsRefused) {
  in_world(1, [&](World& world) {
    const auto refused = [&](WeightedSampling sampling, bool shuffle = true) {
      return refusal_of([&] {
        loader(arranged(3), world,
               {.global_batch = 1, .shuffle = shuffle, .weighted = std::move(sampling)});
      });
    };
    EXPECT_THAT(refused({.weights = {1, 2}}), HasSubstr("2 weights for 3 samples"));
    EXPECT_THAT(refused({.weights = {1, -2, 0}}), HasSubstr("sample 1 is -2"));
    EXPECT_THAT(refused({.weights = {1, 2, 3}}, false), HasSubstr("leave shuffle on"));
    EXPECT_THAT(refused({.draws = 7}), HasSubstr("WeightedSampling::weights"));
  });
}

// Trains up to a step; what the weights of the model are then.
std::string trained(World& world, const DatasetPtr& data, const BatchesOptions& options,
                    const std::string& checkpoint = "") {
  auto job_of = job_options(checkpoint);
  job_of.checkpoint_every_steps = 1000;
  loops::Job job(world, job_of);
  One one(world, "mlp");
  Step step(job, "train", {&one.optimizer}, one.loss());
  for (const GlobalBatch& batch : job.batches(data, options)) step(batch);
  return job.weights_sha256();
}

TEST(WeightedJob, HasTheSameBitsOnAnyNumberOfWorkersAndGoesOnInTheMiddle) {
  const auto data = loops::data_of("mlp");
  std::set<std::string> all = {
      same_on_all(1, "thread", [&](World& world) { return trained(world, data, {.steps = 7}); })};
  for (const bool replacement : {true, false}) {
    const BatchesOptions options{.steps = 7, .weighted = weighted(replacement)};
    const auto whole = [&](World& world) { return trained(world, data, options); };
    const std::string expected = same_on_all(1, "thread", whole);
    all.insert(expected);
    EXPECT_EQ(same_on_all(3, "shm", whole), expected);
    const Folder folder;
    const auto part = [&](std::int64_t steps) {
      return [&, steps](World& world) {
        BatchesOptions some = options;
        some.steps = steps;
        return trained(world, data, some, folder.path());
      };
    };
    same_on_all(2, "shm", part(4));
    EXPECT_EQ(same_on_all(1, "thread", part(7)), expected);
  }
  EXPECT_EQ(all.size(), 3U) << "evenly, with replacement, without";
}

TEST(WeightedJob, OtherWeightsThanTheCheckpointsAreRefused) {
  const Folder folder;
  const auto go_on = [&](const WeightedSampling& sampling) {
    World alone = World::over(connect_alone());
    return refusal_of([&] {
      trained(alone, loops::data_of("mlp"), {.steps = 2, .weighted = sampling}, folder.path());
    });
  };
  EXPECT_EQ(go_on(weighted()), "not refused");
  EXPECT_EQ(go_on(weighted()), "not refused");
  auto other = weighted();
  other.weights[1] += 1e-9;
  EXPECT_THAT(go_on(other), HasSubstr("draws its samples in another way"));
  other = weighted();
  other.draws += 1;
  EXPECT_THAT(go_on(other), HasSubstr("draws its samples in another way"));
  EXPECT_THAT(go_on({}), HasSubstr("now every sample once per epoch"));
}

TEST(WeightedJob, WorkersWithOtherWeightsDisagree) {
  const auto outcomes = outcomes_in_world(2, [&](World& world) {
    auto sampling = weighted();
    sampling.weights[1] += world.rank();
    trained(world, loops::data_of("mlp"), {.steps = 2, .weighted = sampling});
  });
  for (const auto& outcome : outcomes) EXPECT_THAT(outcome.text, HasSubstr("how it is drawn"));
}

// Shard s gives s + 3 samples in each pass, and draws a part of each from LibTorch's default generator.
struct Source {
  bool tells = true;           // its position
  std::int64_t seeks_off = 0;  // by how many samples
  std::int64_t longer = 0;     // by how many samples
  std::atomic<int> given = 0;  // samples, by all streams
  std::atomic<int> opened = 0;
};

class Counting : public Stream {
 public:
  Counting(Source& source, const StreamPlace& place) : source_(source), place_(place) {
    ++source.opened;
  }
  std::optional<torch::data::Example<>> next() override {
    if (next_ == place_.shard + 3 + source_.longer) return std::nullopt;
    ++source_.given;
    const auto value = place_.shard * 100 + place_.pass * 10 + next_++;
    auto own = at::detail::createCPUGenerator(place_.seed + static_cast<std::uint64_t>(value));
    return torch::data::Example<>(torch::randn({10}, own) + torch::rand({10}),
                                  torch::tensor(value % loops::kClasses));
  }
  std::optional<std::int64_t> position() const override {
    return source_.tells ? std::optional(next_) : std::nullopt;
  }
  void seek(std::int64_t position) override { next_ = position + source_.seeks_off; }

 private:
  Source& source_;
  StreamPlace place_;
  std::int64_t next_ = 0;
};

DatasetPtr streams_of(Source& source, std::int64_t samples) {
  return stream_dataset(
      [&source](const StreamPlace& place) { return std::make_unique<Counting>(source, place); },
      {.samples = samples});
}

// Numbers: shard · 100 + pass · 10 + item.
class Numbered : public Stream {
 public:
  explicit Numbered(const StreamPlace& place) : place_(place) {}
  std::optional<torch::data::Example<>> next() override {
    if (next_ == place_.shard + 2) return std::nullopt;
    const auto value = place_.epoch * 1000 + place_.shard * 100 + place_.pass * 10 + next_++;
    return torch::data::Example<>(torch::tensor(value), torch::Tensor());
  }

 private:
  StreamPlace place_;
  std::int64_t next_ = 0;
};

DatasetPtr numbered_streams(std::int64_t samples) {
  return stream_dataset([](const StreamPlace& place) { return std::make_unique<Numbered>(place); },
                        {.samples = samples});
}

TEST(StreamLoader, EachWorkerReadsItsStreamWhichBeginsAgainWhenItEnds) {
  in_world(2, [&](World& world) {
    const auto read = [&](std::int64_t samples, Uneven uneven, std::int64_t first_step = 0) {
      return samples_in(loader(numbered_streams(samples), world,
                               {.global_batch = 4, .uneven = uneven, .threads = 3})
                            .epoch(1, first_step));
    };
    const Numbers mine = world.rank() == 0 ? Numbers{1000, 1001, 1010, 1011, 1020}
                                           : Numbers{1100, 1101, 1102, 1110, 1111};
    const Numbers fewer(mine.begin(), mine.end() - 1);
    EXPECT_EQ(read(9, Uneven::kPad), mine);
    EXPECT_EQ(read(9, Uneven::kDrop), fewer);
    EXPECT_EQ(read(9, Uneven::kKeep), world.rank() == 0 ? mine : fewer);
    EXPECT_EQ(read(9, Uneven::kPad, 2), Numbers(mine.begin() + 4, mine.end()));
    std::int64_t endless = 0;
    for (auto& batch : loader(numbered_streams(0), world, {.global_batch = 2}).epoch(0)) {
      EXPECT_EQ(batch.samples, 1);
      if (++endless == 20) break;
    }
    EXPECT_EQ(endless, 20);
  });
}

TEST(StreamLoader, WhatStreamsCannotDoIsRefused) {
  in_world(1, [&](World& world) {
    const auto refused = [&](const DatasetPtr& data, LoaderOptions options) {
      options.global_batch = 2;
      return refusal_of([&] { samples_in(loader(data, world, options).epoch(0)); });
    };
    EXPECT_THAT(refused(numbered_streams(2), {.weighted = {.weights = {1, 1}}}),
                HasSubstr("streams decide their order"));
    EXPECT_THAT(refused(numbered_streams(2), {.placement = Placement::kOwnPart}),
                HasSubstr("a stream of its own already"));
    const auto none = stream_dataset([](const StreamPlace&) { return nullptr; }, {.samples = 2});
    EXPECT_THAT(refused(none, {}), HasSubstr("no stream was opened for shard 0"));
    struct Empty : Stream {
      std::optional<torch::data::Example<>> next() override { return std::nullopt; }
    };
    const auto empty = stream_dataset([](const StreamPlace&) { return std::make_unique<Empty>(); },
                                      {.samples = 2});
    EXPECT_THAT(refused(empty, {}), HasSubstr("shard 0 of 1 has no samples"));
  });
  EXPECT_THROW(stream_dataset(nullptr), BadInput);
  EXPECT_THROW(numbered_streams(-1), BadInput);
  EXPECT_THROW(numbered_streams(5)->batch(samples_of(Numbers{0})), BadInput);
}

TEST(StreamJob, HasTheSameBitsOnAnyNumberOfWorkersAndGoesOnInTheMiddle) {
  for (const std::int64_t samples : {std::int64_t{0}, std::int64_t{83}}) {
    for (const bool tells : {true, false}) {
      Source source;
      source.tells = tells;
      const auto data = streams_of(source, samples);
      const auto until = [&](std::int64_t steps, const std::string& folder = "") {
        return [&data, steps, folder](World& world) {
          return trained(world, data, {.steps = steps, .loader_threads = 2}, folder);
        };
      };
      const std::string expected = same_on_all(1, "thread", until(10));
      EXPECT_EQ(same_on_all(3, "shm", until(10)), expected);
      const Folder folder;
      same_on_all(2, "shm", until(5, folder.path()));
      source.given = 0;
      EXPECT_EQ(same_on_all(1, "thread", until(10, folder.path())), expected);
      // 8 shards read 2 samples in each of 5 steps; 16 more look at the data, and 16 are those of the step before, which are
      // compared. Without a position, or in a new epoch
      // (steps 6 to 9 if it has 83 samples), streams are read from their beginning.
      if (samples == 0) {
        EXPECT_EQ(source.given, tells ? 96 + 16 : 96 + 80);
      }
    }
  }
}

TEST(StreamJob, NoticesOtherSamplesWhereItGoesOn) {
  for (const bool tells : {true, false}) {
    Source source;
    source.tells = tells;
    const auto data = streams_of(source, 0);
    const Folder folder;
    World alone = World::over(connect_alone());
    trained(alone, data, {.steps = 5}, folder.path());
    const auto goes_on = [&] {
      return refusal_of([&] { trained(alone, data, {.steps = 6}, folder.path()); });
    };
    (tells ? source.seeks_off : source.longer) = 1;
    EXPECT_THAT(goes_on(), HasSubstr("is not the same when it is read again")) << tells;
    (tells ? source.seeks_off : source.longer) = 0;
    trained(alone, data, {.steps = 6}, folder.path());
  }
}

TEST(StreamJob, ReadsAnyShardAgainAndEvaluatesAllSamples) {
  Source source;
  const auto said = [&](World& world) {
    loops::Job job(world, job_options());
    One one(world, "mlp");
    Step step(job, "train", {&one.optimizer}, one.loss());
    std::string text;
    for (const GlobalBatch& batch : job.batches(streams_of(source, 0), {.steps = 3})) {
      step(batch);
      for (int shard = 0; shard < 8; ++shard)
        text += std::to_string(batch.shard(shard).data.sum().item<double>()) + " ";
    }
    const auto score = [](const Batch& batch) -> Score {
      return {batch.data.sum().item<double>(), 0, batch.samples};
    };
    const Evaluation all = job.evaluate(streams_of(source, 21), score);
    EXPECT_EQ(all.samples, 21);
    EXPECT_THROW(job.evaluate(streams_of(source, 0), score), BadInput);
    return text + std::to_string(all.loss);
  };
  EXPECT_EQ(same_on_all(2, "shm", said), same_on_all(1, "thread", said));
}

TEST(StreamJob, WhatCannotBeRepeatedIsRefused) {
  World alone = World::over(connect_alone());
  Source source;
  const auto refused = [&](const DatasetPtr& data, const BatchesOptions& options) {
    return refusal_of([&] { trained(alone, data, options); });
  };
  EXPECT_THAT(refused(streams_of(source, 0), {.epochs = 1}), HasSubstr("have no epochs"));
  EXPECT_THAT(refused(streams_of(source, 0), {.steps = 1, .verify_data = true}),
              HasSubstr("without an end"));
  EXPECT_THAT(refused(streams_of(source, 2), {.steps = 1, .weighted = {.weights = {1, 1}}}),
              HasSubstr("streams decide their order"));
  // A pipe, for example: who opens it again gets what comes next.
  auto next = std::make_shared<std::atomic<int>>(0);
  struct Pipe : Stream {
    explicit Pipe(std::shared_ptr<std::atomic<int>> counter) : counter_(std::move(counter)) {}
    std::optional<torch::data::Example<>> next() override {
      return torch::data::Example<>(torch::full({10}, static_cast<float>(++*counter_)),
                                    torch::tensor(std::int64_t{0}));
    }
    std::shared_ptr<std::atomic<int>> counter_;
  };
  const auto pipe =
      stream_dataset([next](const StreamPlace&) { return std::make_unique<Pipe>(next); });
  EXPECT_THAT(refused(pipe, {.steps = 1}), HasSubstr("not the same when it is read again"));
}

TEST(StreamTrainer, TrainsAndTestsOnStreams) {
  Source source;
  const auto said = [&](World& world) {
    One one(world, "mlp");
    TrainerParts parts{one.model, one.net,
                       std::make_shared<optim::SGD>(one.model, optim::SGDOptions{.lr = 0.1}),
                       streams_of(source, 40), streams_of(source, 19)};
    parts.loss = [net = one.net](const Batch& batch) { return models::loss(*net, batch); };
    parts.score = [](const Batch& batch) -> Score { return {1, 1, batch.samples}; };
    TrainerOptions options;
    options.epochs = 2;
    options.global_batch = 16;
    options.shards = 8;
    const TrainingResult result = Trainer(world, parts, options).run();
    EXPECT_EQ(result.steps, 6);
    EXPECT_EQ(result.evaluation.value().samples, 19);
    return result.weights_sha256;
  };
  EXPECT_EQ(same_on_all(2, "shm", said), same_on_all(1, "thread", said));
}

class Tokens : public ::testing::Test {
 protected:
  // Tokens `first`, `first` + 1 …
  std::string put(const std::string& name, std::uint16_t first, int count) const {
    const std::string path = base::join_path(folder_.path(), name);
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < count; ++i, ++first)
      file.put(static_cast<char>(first & 255)).put(static_cast<char>(first >> 8));
    return path;
  }
  Folder folder_;
};

TEST_F(Tokens, WindowsOfSeveralFilesDoNotCrossFromOneToTheNext) {
  const auto data = token_dataset({put("a", 100, 11), put("b", 300, 4), put("c", 500, 9)},
                                  {.context = 4, .vocabulary = 509});
  ASSERT_EQ(data->size(), 4);
  const Batch batch = data->batch(samples_of(Numbers{3, 0, 1, 2}));
  EXPECT_EQ(batch.samples, 4);
  EXPECT_THAT(numbers_of(batch.data.slice(1, 0, 1)), ElementsAre(504, 100, 104, 500));
  EXPECT_THAT(numbers_of(batch.target[2]), ElementsAre(105, 106, 107, 108));
  EXPECT_THROW(data->batch(samples_of(Numbers{4})), BadInput);
}

TEST_F(Tokens, AreLoadedFromAFileOrADirectory) {
  const auto one = datasets::load(put("corpus.bin", 0, 100), {.context = 3, .vocabulary = 100});
  EXPECT_EQ(one.train->size(), 29);
  EXPECT_EQ(one.test->size(), 3);
  EXPECT_THAT(numbers_of(one.test->batch(samples_of(Numbers{0})).data), ElementsAre(90, 91, 92));
  EXPECT_TRUE(one.shape.is_text);
  EXPECT_EQ(one.shape.classes, 100);
  put("x_train_0.bin", 0, 10);
  put("x_train_1.bin", 50, 10);
  put("x_val.bin", 90, 10);
  const auto many = datasets::load(folder_.path(), {.context = 3, .vocabulary = 100});
  EXPECT_EQ(many.train->size(), 6);
  EXPECT_THAT(numbers_of(many.train->batch(samples_of(Numbers{3})).data), ElementsAre(50, 51, 52));
  EXPECT_EQ(many.test->size(), 3);
}

TEST_F(Tokens, WhatDoesNotFitIsRefused) {
  const std::string path = put("corpus.bin", 0, 100);
  const auto refused = [&](const TokenOptions& options) {
    return refusal_of([&] { token_dataset({path}, options)->batch(samples_of(Numbers{8})); });
  };
  EXPECT_THAT(refused({.context = 5}), HasSubstr("does not say how large its vocabulary is"));
  EXPECT_THAT(refused({.context = 5, .vocabulary = 43}), HasSubstr("token 43 is 43"));
  EXPECT_THAT(refused({.context = 100, .vocabulary = 100}), HasSubstr("too few tokens"));
  EXPECT_THAT(refused({.context = 0, .vocabulary = 100}), HasSubstr("at least 1"));
  EXPECT_THAT(refused({.context = 5, .vocabulary = 100, .token_bytes = 3}), HasSubstr("2 or 4"));
  const auto data = token_dataset({path}, {.context = 5, .vocabulary = 100});
  ASSERT_EQ(::truncate(path.c_str(), 50), 0);
  EXPECT_THAT(refusal_of([&] { data->batch(samples_of(Numbers{8})); }), HasSubstr("shorter"));
}

}  // namespace
}  // namespace lockstep::testing::sources
