// Gradients that a codec encodes: the result is that of the definition, on any number of workers and with every engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/codec.h>
#include <lockstep/errors.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/step.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flat/low_rank.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::testing::loops {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Larger than two blocks, with a last block that is not whole.
std::shared_ptr<models::Net> wide_net() {
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(kSeed);
  return models::make_mlp(shape_of("mlp"), 230);
}

struct Encoded {
  Encoded(World& world, const std::string& codec, std::size_t bucket_bytes = 25 << 20)
      : net(wide_net()),
        model(data_parallel(
            net, world,
            {.codec = codec::parse(codec), .first_bucket_bytes = 0, .bucket_bytes = bucket_bytes})),
        optimizer(model, {.lr = 0.1, .momentum = 0.9}) {}

  std::shared_ptr<models::Net> net;
  DataParallel<std::shared_ptr<models::Net>> model;
  optim::SGD optimizer;
};

struct HowEncoded {
  std::string codec;
  std::size_t bucket_bytes = 25 << 20;
  JobOptions options = job_options();
  std::int64_t steps = kSteps;
};

std::string encoded_job(World& world, const HowEncoded& how) {
  Job job(world, how.options);
  Encoded one(world, how.codec, how.bucket_bytes);
  Step step(job, "train", {&one.optimizer},
            [&](const Shard& shard) { return models::loss(*one.net, shard.batch); });
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = how.steps})) step(batch);
  return job.weights_sha256();
}

std::string encoded_alone(const HowEncoded& how) {
  World alone = World::over(connect_alone());
  return encoded_job(alone, how);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& codec) {
  std::string name = codec.param;
  for (char& letter : name) letter = std::isalnum(letter) ? letter : '_';
  return name;
}

class OfCodec : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, OfCodec,
                         ::testing::Values("bf16", "fp16", "int8", "int8:plain", "top-k:0.1",
                                           "one-bit", "power-sgd:2:1"),
                         test_name);

class OfBlockCodec : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, OfBlockCodec,
                         ::testing::Values("bf16", "fp16", "int8", "int8:plain", "top-k:0.1",
                                           "one-bit"),
                         test_name);

TEST_P(OfCodec, OneHashOnAnyNumberOfWorkersWithEveryEngine) {
  const std::string expected = encoded_alone({GetParam()});
  EXPECT_NE(expected, encoded_alone({"none"}));
  expect_everywhere(expected, [&](World& world) { return encoded_job(world, {GetParam()}); });
}

TEST_P(OfCodec, BucketsDecideNoBits) {
  const std::string expected = encoded_alone({GetParam()});
  for (const std::size_t bytes : {0, 4096, 100'000}) {
    for (const std::string engine : {"tcp", kTcpHosts}) {
      EXPECT_EQ(same_on_all(3, engine,
                            [&](World& world) {
                              return encoded_job(world, {GetParam(), bytes});
                            }),
                expected)
          << bytes << ' ' << engine;
    }
  }
}

// C(x + lost), block by block, by the public interface alone.
torch::Tensor by_codec(const Codec& codec, const torch::Tensor& x, torch::Tensor& lost) {
  const torch::Tensor sent = x + (codec.has_error_feedback() ? lost : torch::zeros_like(x));
  torch::Tensor result = torch::empty_like(sent);
  const auto count = static_cast<std::size_t>(sent.numel());
  for (std::size_t first = 0; first < count; first += Codec::kBlock) {
    const std::size_t some = std::min(Codec::kBlock, count - first);
    std::vector<std::byte> bytes(codec.bytes(some));
    codec.encode({sent.data_ptr<float>() + first, some}, bytes.data());
    codec.decode(bytes.data(), {result.data_ptr<float>() + first, some});
  }
  lost = sent - result;
  return result;
}

// The samples of each shard, as a job gives them out; none for a shard of a short batch that has none.
std::map<std::pair<std::int64_t, int>, Batch> batches_of_job(int shards) {
  std::map<std::pair<std::int64_t, int>, Batch> batches;
  World alone = World::over(connect_alone());
  JobOptions options = job_options();
  options.shards = shards;
  Job job(alone, options);
  One one(alone, "mlp");
  Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
    Batch& batch = batches[{shard.step, shard.index}];
    batch = shard.batch;
    batch.data = batch.data.clone();  // its memory is used again
    batch.target = batch.target.clone();
    return models::loss(*one.net, shard.batch);
  });
  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) {
    step(batch);
    for (int shard = 0; shard < shards; ++shard) batches[{batch.step(), shard}];
  }
  return batches;
}

// Of the sum over samples, by LibTorch alone.
std::vector<torch::Tensor> gradients_of(models::Net& net, const Batch& batch) {
  const auto parameters = net.parameters();
  if (batch.samples > 0) {
    const auto loss = models::loss(net, batch);
    return torch::autograd::grad({loss}, parameters,
                                 {torch::full_like(loss, static_cast<double>(batch.samples))});
  }
  std::vector<torch::Tensor> zeros;
  for (const torch::Tensor& parameter : parameters) zeros.push_back(torch::zeros_like(parameter));
  return zeros;
}

// Gradients by LibTorch alone, additions of tensors, and C as above. The update is that of a world of one worker.
TEST_P(OfBlockCodec, IsThePlainProgramOfItsDefinition) {
  constexpr int kShards = 4;
  const auto codec = codec::parse(GetParam());
  const auto batches = batches_of_job(kShards);
  World alone = World::over(connect_alone());
  Encoded plain(alone, "none");
  const auto parameters = plain.net->parameters();
  std::vector<std::array<torch::Tensor, kShards + 1>> lost(parameters.size());
  for (auto& of_parameter : lost) of_parameter.fill(torch::zeros({1}));
  for (std::int64_t step = 0; step < kSteps; ++step) {
    double total = 0;
    for (int shard = 0; shard < kShards; ++shard)
      total += static_cast<double>(batches.at({step, shard}).samples);
    std::vector<std::array<torch::Tensor, kShards>> sent(parameters.size());
    for (int shard = 0; shard < kShards; ++shard) {
      const auto gradients = gradients_of(*plain.net, batches.at({step, shard}));
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        sent[i][static_cast<std::size_t>(shard)] =
            by_codec(*codec, gradients[i].contiguous() * static_cast<float>(1 / total),
                     lost[i][static_cast<std::size_t>(shard)]);
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto sum = (sent[i][0] + sent[i][1]) + (sent[i][2] + sent[i][3]);
      torch::Tensor parameter = parameters[i];
      parameter.mutable_grad() = by_codec(*codec, sum, lost[i][kShards]);
    }
    plain.optimizer.step();
  }
  JobOptions options = job_options();
  options.shards = kShards;
  in_world(2, "tcp", [&](World& world) {
    Job job(world, options);
    Encoded one(world, GetParam());
    Step step(job, "train", {&one.optimizer},
              [&](const Shard& shard) { return models::loss(*one.net, shard.batch); });
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) step(batch);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(torch::equal(one.net->parameters()[i], parameters[i])) << i;
  });
}

// The field's formulas, in float64 and with LAPACK's QR; the gradients are those of float32 weights.
class PlainPowerSgd {
 public:
  static constexpr int kShards = 4;
  static constexpr int kRank = 2;
  static constexpr std::int64_t kFrom = 1;

  explicit PlainPowerSgd(World& alone)
      : plain_(alone, "none"), parameters(plain_.net->parameters()), factors_(parameters.size()) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      lost_.emplace_back().fill(torch::zeros_like(parameters[i], torch::kFloat64));
      if (parameters[i].dim() < 2) continue;
      const auto rows = static_cast<std::size_t>(parameters[i].size(0));
      const auto columns = static_cast<std::size_t>(parameters[i].size(1));
      if (!flat::worth_factors(rows, columns, kRank)) continue;
      const torch::Tensor first = torch::empty({parameters[i].size(1), kRank});
      flat::first_factor(first.data_ptr<float>(), columns, kRank);
      factors_[i] = first.to(torch::kFloat64);
    }
  }

  bool has_factors() const {
    return std::any_of(factors_.begin(), factors_.end(), [](const auto& q) { return q.defined(); });
  }

  void step(std::int64_t number, const std::map<std::pair<std::int64_t, int>, Batch>& batches);

 private:
  using OfShards = std::array<torch::Tensor, kShards>;
  torch::Tensor reduced(std::size_t i, const OfShards& parts, bool encodes);

  Encoded plain_;

 public:
  const std::vector<torch::Tensor> parameters;

 private:
  std::vector<torch::Tensor> factors_;
  std::vector<OfShards> lost_;
};

void PlainPowerSgd::step(std::int64_t number,
                         const std::map<std::pair<std::int64_t, int>, Batch>& batches) {
  double total = 0;
  for (int shard = 0; shard < kShards; ++shard)
    total += static_cast<double>(batches.at({number, shard}).samples);
  std::vector<OfShards> parts(parameters.size());
  for (std::size_t shard = 0; shard < kShards; ++shard) {
    const auto gradients = gradients_of(*plain_.net, batches.at({number, static_cast<int>(shard)}));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parts[i][shard] = gradients[i].to(torch::kFloat64) / total + lost_[i][shard];
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor parameter = parameters[i];
    parameter.mutable_grad() = reduced(i, parts[i], number >= kFrom).to(torch::kFloat32);
  }
  plain_.optimizer.step();
}

torch::Tensor PlainPowerSgd::reduced(std::size_t i, const OfShards& parts, bool encodes) {
  torch::Tensor sum = parts[0];
  for (std::size_t shard = 1; shard < kShards; ++shard) sum = sum + parts[shard];
  if (!factors_[i].defined() || !encodes) return sum;
  const auto p = std::get<0>(torch::linalg_qr(torch::mm(sum, factors_[i])));
  factors_[i] = torch::mm(sum.t(), p);
  const torch::Tensor average = torch::mm(p, factors_[i].t());
  for (std::size_t shard = 0; shard < kShards; ++shard)
    lost_[i][shard] = parts[shard] - average / kShards;
  return average;
}

// The worst tensor's distance was 2e-7 of its norm; a factor that begins otherwise, or no feedback, gives more than 1e-3.
TEST(PowerSgdJob, IsThePlainProgramOfItsDefinition) {
  JobOptions options = job_options();
  options.shards = PlainPowerSgd::kShards;
  const auto batches = batches_of_job(options.shards);
  World alone = World::over(connect_alone());
  PlainPowerSgd plain(alone);
  EXPECT_TRUE(plain.has_factors());
  for (std::int64_t step = 0; step < kSteps; ++step) plain.step(step, batches);
  in_world(2, "tcp", [&](World& world) {
    Job job(world, options);
    Encoded one(world, "power-sgd:2:1");
    Step step(job, "train", {&one.optimizer},
              [&](const Shard& shard) { return models::loss(*one.net, shard.batch); });
    for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = kSteps})) step(batch);
    for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
      const torch::Tensor& wanted = plain.parameters[i];
      const double distance = (one.net->parameters()[i] - wanted).norm().item<double>();
      EXPECT_LE(distance / wanted.norm().item<double>(), 2e-6) << i;
    }
  });
}

// Error feedback is in the checkpoint: half of the job on three workers, the rest on others.
TEST_P(OfCodec, ACheckpointGoesOnOnAnotherNumberOfWorkers) {
  const std::string expected = encoded_alone({GetParam()});
  for (const auto& [engine, workers] :
       {std::pair("tcp", 2), std::pair("shm", 4), std::pair("thread", 1)}) {
    const Folder folder;
    HowEncoded how{GetParam()};
    how.options.checkpoint = folder / "run";
    how.options.existing_checkpoint = ExistingCheckpoint::kResume;
    how.steps = 4;
    same_on_all(3, "tcp", [&](World& world) { return encoded_job(world, how); });
    how.steps = kSteps;
    EXPECT_EQ(same_on_all(workers, engine, [&](World& world) { return encoded_job(world, how); }),
              expected)
        << workers << " workers, " << engine;
  }
}

// A drop-in loop has one shard on each worker.
TEST_P(OfCodec, ADropInLoopHasOneHashWithEveryEngine) {
  const auto hash = [&](World& world, const std::string& codec) {
    Encoded one(world, codec, 4096);
    for (int step = 0; step < 4; ++step) {
      const auto x =
          samples(static_cast<std::uint64_t>(step * world.size() + world.rank()), {5, 10});
      one.optimizer.zero_grad();
      one.net->forward(x).pow(2).mean().backward();
      one.optimizer.step();
    }
    return replica::digest(replica::inside(one.model).model().everything());
  };
  for (const int workers : {2, 3}) {
    const std::string expected =
        same_on_all(workers, "thread", [&](World& world) { return hash(world, GetParam()); });
    for (const std::string engine : {"tcp", "shm"}) {
      EXPECT_EQ(same_on_all(workers, engine, [&](World& world) { return hash(world, GetParam()); }),
                expected);
    }
    EXPECT_NE(same_on_all(workers, "thread", [&](World& world) { return hash(world, "none"); }),
              expected);
  }
}

template <typename Body>
std::string codec_refusal(const Body& body) {
  try {
    World alone = World::over(connect_alone());
    body(alone);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "";
}

TEST(CodecOptions, WhatNoCodecCanDoIsRefusedByName) {
  const auto made = [](World& world, DataParallelOptions options, auto type) {
    options.codec = codec::int8();
    auto net = wide_net();
    net->to(type);
    data_parallel(net, world, options);
  };
  EXPECT_THAT(codec_refusal([&](World& world) { made(world, {}, torch::kFloat64); }),
              HasSubstr("the codec int8 is for float32 parameters, and"));
  EXPECT_THAT(codec_refusal([&](World& world) {
                made(world, {.algorithm = Algorithm::kRing}, torch::kFloat32);
              }),
              HasSubstr("leave out the algorithm ring"));
  EXPECT_THAT(codec_refusal([&](World& world) {
                made(world, {.missing_gradient = MissingGradient::kZero}, torch::kFloat32);
              }),
              HasSubstr("error feedback, which needs the same parameters in every step"));
}

TEST(CodecOptions, ARankThatMakesNothingSmallerIsRefused) {
  EXPECT_THAT(codec_refusal([](World& world) { Encoded one(world, "power-sgd:200"); }),
              AllOf(HasSubstr("would make no gradient of this model smaller"),
                    HasSubstr("could have rank 57 at most")));
}

TEST(CodecOptions, ErrorFeedbackTakesNoScaler) {
  EXPECT_THAT(codec_refusal([](World& world) {
                Job job(world, job_options());
                Encoded one(world, "one-bit");
                GradScaler scaler;
                StepOptions options;
                options.scaler = &scaler;
                Step step(
                    job, "train", {&one.optimizer},
                    [&](const Shard& shard) { return models::loss(*one.net, shard.batch); },
                    options);
                for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 1}))
                  step(batch);
              }),
              HasSubstr("the codec one-bit with error feedback"));
}

TEST(CodecOptions, ErrorFeedbackTakesNoScalerInADropInLoopEither) {
  EXPECT_THAT(codec_refusal([](World& world) {
                Encoded one(world, "int8");
                GradScaler scaler;
                scaler.scale(one.net->forward(samples(1, {5, 10})).pow(2).mean()).backward();
                scaler.step(one.optimizer);
              }),
              HasSubstr("codec int8 has error feedback"));
}

TEST(CodecOptions, AJobOfAnotherNumberOfShardsWouldLoseErrorFeedback) {
  EXPECT_THAT(codec_refusal([](World& world) {
                Encoded one(world, "int8");
                for (const int shards : {8, 4}) {
                  JobOptions options = job_options();
                  options.shards = shards;
                  Job job(world, options);
                  Step step(job, "train", {&one.optimizer}, [&](const Shard& shard) {
                    return models::loss(*one.net, shard.batch);
                  });
                  for (const GlobalBatch& batch : job.batches(data_of("mlp"), {.steps = 2}))
                    step(batch);
                }
              }),
              HasSubstr("keeps error feedback of 8 shards, and now there are 4"));
}

TEST(CodecOptions, TheNoiseScaleIsNotOfEncodedGradients) {
  EXPECT_THAT(codec_refusal([](World& world) {
                Job job(world, job_options());
                Encoded one(world, "bf16");
                StepOptions options;
                options.noise_scale_every = 1;
                Step step(
                    job, "train", {&one.optimizer},
                    [&](const Shard& shard) { return models::loss(*one.net, shard.batch); },
                    options);
              }),
              HasSubstr("its model has a codec"));
}

TEST(CodecOptions, WorkersWithDifferentCodecsDoNotTrain) {
  const auto outcomes = outcomes_in_world(
      2, [](World& world) { Encoded one(world, world.leader() ? "bf16" : "fp16"); });
  for (const auto& outcome : outcomes) EXPECT_THAT(outcome.text, HasSubstr("option codec"));
}

TEST(CodecOptions, ACheckpointOfAnotherCodecIsRefused) {
  const Folder folder;
  HowEncoded how{"int8"};
  how.options.checkpoint = folder / "run";
  how.steps = 2;
  encoded_alone(how);
  how.codec = "bf16";
  how.options.existing_checkpoint = ExistingCheckpoint::kResume;
  EXPECT_THROW(encoded_alone(how), Mismatch);
}

}  // namespace
}  // namespace lockstep::testing::loops
