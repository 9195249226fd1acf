// `lockstep train` on 2 and 4 workers against programs that know nothing of Lockstep: a plain LibTorch loop over the
// same micro-batches with the same seeds, and PyTorch's own DistributedDataParallel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/checkpoint.h>
#include <lockstep/data.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>

#include "plan/position.h"
#include "plan/seed.h"
#include "tests/support/python.h"
#include "tests/torch/folder.h"
#include "torch/models/models.h"

namespace lockstep::testing::numbers {
namespace {

constexpr int kSteps = 20;
constexpr std::uint64_t kSeed = 5;

struct Case {
  std::string model;
  std::string optimizer;
  int workers;
  int accumulate;
  double dropout;  // below 0: the model's own
  std::string codec = "none";
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << c.optimizer << ", " << c.workers << " workers, " << c.accumulate
       << " passes" << (c.codec == "none" ? "" : ", " + c.codec);
}

constexpr std::int64_t kContext = 32;

// A ReLU whose input is within rounding of zero may fall on either side of it, and the weights behind it
// then part by far more than rounding; so may the choice of a pooling. With 32 samples and 20 steps the
// mlp met one at 2 shards and not at 4 (1e-4 in one tensor, SGD), the cnn on one processor and not on
// another. A quarter of the samples and smaller steps met none in 24 runs of the mlp.
bool has_kinks(const Case& c) {
  return c.model != "gpt";
}
std::int64_t global_batch(const Case& c) {
  return has_kinks(c) ? 8 : 32;
}
double learning_rate(const Case& c) {
  return (c.optimizer == "sgd" ? 0.05 : 1e-3) / (has_kinks(c) ? 10 : 1);
}

int shards_of(const Case& c) {
  return c.workers * c.accumulate;
}

// The data of a case, as `lockstep train` finds it.
std::string data_for(const Case& c, const Folder& folder) {
  if (c.model != "gpt") return "synthetic";
  std::string text;
  std::uint32_t state = 1;
  while (text.size() < 40'000) {
    state = state * 1664525U + 1013904223U;
    text += "the quick brown fox jumps over a lazy dog, "[(state >> 16) % 43];
  }
  std::ofstream(folder / "text.txt") << text;
  return folder / "text.txt";
}

DataSplits load_for(const Case& c, const std::string& data) {
  datasets::LoadOptions options;
  options.context = kContext;
  options.seed = kSeed;
  if (c.model == "cnn") options.sample = {1, 28, 28};
  return datasets::load(data, options);
}

std::shared_ptr<models::Net> model_for(const Case& c, const DataShape& shape) {
  torch::manual_seed(kSeed);
  return models::make({c.model, "tiny", c.dropout, 0}, shape);
}

void run_lockstep(const Case& c, const Folder& folder, const std::string& data) {
  std::ostringstream command;
  command << "'" LOCKSTEP_COMMAND "' train --quiet --model " << c.model << " --data '" << data
          << "' --optimizer " << c.optimizer << " --workers " << c.workers << " --accumulate "
          << c.accumulate << " --steps " << kSteps << " --global-batch " << global_batch(c)
          << " --context " << kContext << " --seed " << kSeed
          << (c.dropout < 0 ? "" : " --dropout " + std::to_string(c.dropout)) << " --lr "
          << learning_rate(c) << " --codec " << c.codec << " --bucket-bytes 100000 --checkpoint '"
          << (folder / "run") << "' > '" << (folder / "out") << "' 2>&1";
  const int status = std::system(command.str().c_str());
  std::ifstream out(folder / "out");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(out), {});
}

std::unique_ptr<torch::optim::Optimizer> stock_optimizer(const Case& c, models::Net& net) {
  if (c.optimizer == "adamw") {
    return std::make_unique<torch::optim::AdamW>(
        net.parameters(), torch::optim::AdamWOptions(learning_rate(c)).weight_decay(0.01));
  }
  return std::make_unique<torch::optim::SGD>(
      net.parameters(),
      torch::optim::SGDOptions(learning_rate(c)).momentum(0.9).weight_decay(5e-4));
}

std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

// Forward and backward of each micro-batch, the mean of their gradients, a stock optimizer. Every shard begins with the
// buffers of the step before; those of the first shard stay.
std::shared_ptr<models::Net> plain_loop(const Case& c, const DataSplits& data) {
  auto net = model_for(c, data.shape);
  auto optimizer = stock_optimizer(c, *net);
  plan::Batches batches({data.train->size(), global_batch(c), shards_of(c), kSeed});
  for (int step = 0; step < kSteps; ++step) {
    net->zero_grad(false);
    const auto before = copies(net->buffers());
    std::vector<torch::Tensor> first_shards;
    for (int shard = 0; shard < shards_of(c); ++shard) {
      torch::manual_seed(plan::shard_seed(kSeed, step, shard));
      {
        torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < before.size(); ++i) net->buffers()[i].copy_(before[i]);
      }
      const auto indices = batches.samples(step, shard);
      (models::loss(*net, data.train->batch(samples_of(indices))) / shards_of(c)).backward();
      if (shard == 0) first_shards = copies(net->buffers());
    }
    {
      torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < before.size(); ++i) net->buffers()[i].copy_(first_shards[i]);
    }
    optimizer->step();
  }
  return net;
}

std::map<std::string, torch::Tensor> tensors_of(const torch::nn::Module& module,
                                                bool with_buffers) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : module.named_parameters()) result[item.key()] = item.value().detach();
  if (!with_buffers) return result;
  for (const auto& item : module.named_buffers()) result[item.key()] = item.value().detach();
  return result;
}

double length_of(const torch::Tensor& tensor) {
  return tensor.to(torch::kFloat64).norm().item<double>();
}

// SGD: each tensor ‖Δ‖/‖w‖ ≤ 1e-6. AdamW divides by √v, which blows rounding of small gradients up, so the bound is
// 2e-6 over the whole model and the worst tensor is printed. With fp16 some gradients are within rounding of the middle of
// two halves, and fall on the other side: 2^-11 of the change of that element. Seen: 9e-6 of a tensor, 5e-7 of the model.
// PowerSGD: seen 3e-7 and 5e-8. There is no case for mlp with it: after 20 steps its last layer differs by 1e-3 between two
// runs of one program whose first weights differ by 1e-7: its factors amplify that.
void expect_same(const Case& c, const torch::nn::Module& expected, const torch::nn::Module& got,
                 bool with_buffers = true) {
  double error = 0;
  double size = 0;
  double worst = 0;
  std::string worst_name;
  const auto ours = tensors_of(got, with_buffers);
  for (const auto& [name, tensor] : tensors_of(expected, with_buffers)) {
    const double difference =
        length_of(ours.at(name).to(torch::kFloat64) - tensor.to(torch::kFloat64));
    const double relative = difference / std::max(length_of(tensor), 1e-12);
    if (c.optimizer == "sgd") {
      EXPECT_LE(relative, c.codec == "none" ? 1e-6 : 2e-5) << name;
    }
    if (relative > worst) {
      worst = relative;
      worst_name = name;
    }
    error += difference * difference;
    size += length_of(tensor) * length_of(tensor);
  }
  EXPECT_LE(std::sqrt(error / size), 2e-6);
  std::cout << "worst tensor " << worst_name << ": " << worst << ", whole model "
            << std::sqrt(error / size) << "\n";
}

class Numbers : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
#if defined(__aarch64__)
    at::globalContext().setUserEnabledMkldnn(false);  // as `lockstep train` has it there
#endif
    at::set_num_threads(1);
  }
};

class AgainstPlainLibTorch : public Numbers {};

TEST_P(AgainstPlainLibTorch, TwentyStepsGiveTheSameWeights) {
  const Case c = GetParam();
  const Folder folder;
  const std::string data = data_for(c, folder);
  run_lockstep(c, folder, data);
  const DataSplits splits = load_for(c, data);
  const auto expected = plain_loop(c, splits);
  auto got = model_for(c, splits.shape);
  load(*got, folder / "run/checkpoint-000000020.safetensors");
  expect_same(c, *expected, *got);
}

// Each takes up to ten seconds: `make test-full` runs all, `make test` every model and optimizer.
std::vector<Case> plain_cases() {
  std::vector<Case> cases = {{"mlp", "sgd", 2, 1, -1}, {"mlp", "adamw", 2, 2, -1},
                             {"cnn", "sgd", 2, 2, -1}, {"cnn", "adamw", 2, 1, -1},
                             {"gpt", "sgd", 2, 1, -1}, {"gpt", "adamw", 2, 1, -1}};
  if (std::getenv("LOCKSTEP_TEST_FULL") != nullptr) {
    cases.push_back({"gpt", "adamw", 4, 1, -1});
    cases.push_back({"mlp", "sgd", 4, 1, -1});
    cases.push_back({"cnn", "sgd", 4, 1, -1});
    cases.push_back({"gpt", "sgd", 2, 2, -1});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Train, AgainstPlainLibTorch, ::testing::ValuesIn(plain_cases()));

class AgainstPyTorchDdp : public Numbers {};

// Everything that the script needs, in one file: initial values, samples, and which of them each rank reads when.
void write_inputs(const Case& c, const DataSplits& data, const std::string& path) {
  auto net = model_for(c, data.shape);
  std::vector<std::int64_t> all(static_cast<std::size_t>(data.train->size()));
  std::iota(all.begin(), all.end(), 0);
  const Batch whole = data.train->batch(samples_of(all));
  plan::Batches batches({data.train->size(), global_batch(c), shards_of(c), kSeed});
  std::vector<std::int64_t> indices;
  for (int step = 0; step < kSteps; ++step) {
    for (int shard = 0; shard < shards_of(c); ++shard) {
      const auto part = batches.samples(step, shard);
      indices.insert(indices.end(), part.begin(), part.end());
    }
  }
  auto holder = std::make_shared<torch::nn::Module>();
  holder->register_module("model", net);
  holder->register_buffer("data", whole.data);
  holder->register_buffer("target", whole.target);
  holder->register_buffer("indices", torch::tensor(indices).view({kSteps, shards_of(c), -1}));
  save(*holder, path);
}

TEST_P(AgainstPyTorchDdp, TwentyStepsGiveTheSameWeights) {
  const std::string python = python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no PyTorch: apt install python3-torch";
  const Case c = GetParam();
  const Folder folder;
  const std::string data = data_for(c, folder);
  run_lockstep(c, folder, data);
  const DataSplits splits = load_for(c, data);
  write_inputs(c, splits, folder / "inputs.safetensors");
  std::ostringstream command;
  command << "'" LOCKSTEP_COMMAND "' run -q -n " << c.workers << " -- " << python << " '"
          << DDP_SCRIPT << "' " << c.model << ' ' << c.optimizer << ' ' << learning_rate(c) << ' '
          << c.accumulate << " '" << (folder / "inputs.safetensors") << "' '"
          << (folder / "ddp.safetensors") << "' " << (c.codec == "none" ? "" : c.codec) << " > '"
          << (folder / "ddp.out") << "' 2>&1";
  const int status = std::system(command.str().c_str());
  std::ifstream out(folder / "ddp.out");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(out), {});
  auto expected = model_for(c, splits.shape);
  auto got = model_for(c, splits.shape);
  load(*expected, folder / "ddp.safetensors");
  load(*got, folder / "run/checkpoint-000000020.safetensors");
  // A DDP worker's buffers go from one of its passes to the next; ours begin each shard anew.
  expect_same(c, *expected, *got, c.accumulate == 1);
}

// Every worker of a case is two processes that load LibTorch: more than two with `make test-full` only.
std::vector<Case> ddp_cases() {
  std::vector<Case> cases = {
      {"mlp", "sgd", 2, 1, 0},
      {"cnn", "sgd", 2, 2, 0},
      {"cnn", "adamw", 2, 1, 0},
      {"gpt", "adamw", 2, 1, 0},
      // Beside fp16_compress_hook. Two halves of fp16 are added there in fp16 and here in
      // float32 and rounded to fp16, which is the same.
      {"mlp", "sgd", 2, 1, 0, "fp16"},
      // Beside powerSGD_hook, which begins at the third step at the earliest.
      {"cnn", "sgd", 2, 1, 0, "power-sgd:2:2"}};
  if (std::getenv("LOCKSTEP_TEST_FULL") != nullptr) {
    cases.push_back({"cnn", "adamw", 4, 1, 0});
    cases.push_back({"cnn", "sgd", 2, 1, 0, "fp16"});
    cases.push_back({"gpt", "adamw", 2, 1, 0, "power-sgd:1:2"});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Train, AgainstPyTorchDdp, ::testing::ValuesIn(ddp_cases()));

}  // namespace
}  // namespace lockstep::testing::numbers
