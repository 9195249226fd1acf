// The models of `lockstep train`: what they are, and that a GPU computes the same numbers, twice the same bits.
#include "torch/models/models.h"

#include <gtest/gtest.h>
#include <lockstep/autocast.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/torch/nets.h"

namespace lockstep::testing {
namespace {

TEST(Models, GptOfGpt2sSizeHasItsParameters) {
  const DataShape text{{1024}, 100, true};
  const auto net = models::make({.name = "gpt", .gpt_size = "gpt2", .vocabulary = 50257}, text);
  std::int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  EXPECT_EQ(parameters, 124'439'808);  // with the embedding as the output layer, too
}

struct ModelCase {
  std::string model;
  DataShape shape;
};

std::vector<ModelCase> model_cases() {
  return {{"mlp", {{1, 28, 28}, 10, false}},
          {"cnn", {{1, 28, 28}, 10, false}},
          {"resnet18", {{3, 32, 32}, 10, false}},
          {"gpt", {{32}, 50, true}}};
}

std::shared_ptr<models::Net> model_of(const ModelCase& job) {
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(3);
  return models::make({.name = job.model, .dropout = 0}, job.shape);
}

Batch batch_of(const ModelCase& job) {
  constexpr std::int64_t kSamples = 8;
  std::vector<std::int64_t> sizes = job.shape.sample;
  sizes.insert(sizes.begin(), kSamples);
  const auto places = torch::arange(kSamples * 32);
  if (job.shape.is_text) {
    const auto tokens = (places * 7 % job.shape.classes).view(sizes);
    return {tokens, (tokens + 1) % job.shape.classes, kSamples};
  }
  return {samples(4, sizes), places.slice(0, 0, kSamples) % job.shape.classes, kSamples};
}

Batch on(torch::Device device, const Batch& batch) {
  return {batch.data.to(device), batch.target.to(device), batch.samples};
}

// The loss and all gradients of a fresh model, as one row on the CPU.
torch::Tensor numbers_of(const ModelCase& job, torch::Device device, bool half = false) {
  auto net = model_of(job);
  net->to(device);
  const Batch batch = on(device, batch_of(job));
  torch::Tensor loss;
  {
    const Autocast scope(device.type(), torch::kBFloat16, {.enabled = half});
    loss = models::loss(*net, batch);
  }
  loss.backward();
  std::vector<torch::Tensor> all = {loss.detach().view(1)};
  for (const auto& parameter : net->parameters()) all.push_back(parameter.grad().flatten());
  return torch::cat(all).cpu();
}

// oneDNN has no bfloat16 on some CPUs; without it convolutions take long.
TEST(Models, TheLossIsFloat32AlsoWhereTheModelComputesInAHalfType) {
  auto& context = at::globalContext();
  const bool onednn = context.userEnabledMkldnn();
  context.setUserEnabledMkldnn(false);
  for (const ModelCase& job : model_cases()) {
    if (job.model == "cnn" || job.model == "resnet18") continue;
    auto net = model_of(job);
    const Autocast half(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(models::loss(*net, batch_of(job)).scalar_type(), torch::kFloat32) << job.model;
  }
  context.setUserEnabledMkldnn(onednn);
}

class ModelsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU here, or a LibTorch without CUDA";
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(true, false);
    context.setDeterministicCuDNN(true);
    context.setAllowTF32CuDNN(false);
    memory_efficient(context, false);
  }
  void TearDown() override {
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(false, false);
    context.setDeterministicCuDNN(false);
    context.setAllowTF32CuDNN(true);
    memory_efficient(context, true);
  }

 private:
  template <typename Context>
  static void memory_efficient(Context& context, bool on) {
    if constexpr (requires { context.setSDPUseMemEfficient(on); })
      context.setSDPUseMemEfficient(on);
  }
};

// Sums of some thousand float32 in another order: relative to the largest gradient.
TEST_F(ModelsOnGpu, ComputeWhatTheCpuComputes) {
  for (const ModelCase& job : model_cases()) {
    const auto cpu = numbers_of(job, torch::kCPU);
    const auto gpu = numbers_of(job, torch::kCUDA);
    EXPECT_NEAR(gpu[0].item<float>(), cpu[0].item<float>(), 1e-4) << job.model;
    const double largest = cpu.slice(0, 1).abs().max().item<double>();
    EXPECT_LT((gpu - cpu).abs().max().item<double>(), 1e-3 * largest) << job.model;
  }
}

TEST_F(ModelsOnGpu, GiveTheSameBitsTwiceInBothPrecisions) {
  for (const ModelCase& job : model_cases()) {
    for (const bool half : {false, true}) {
      const auto once = numbers_of(job, torch::kCUDA, half);
      const auto again = numbers_of(job, torch::kCUDA, half);
      EXPECT_TRUE(torch::equal(once, again)) << job.model << (half ? " bf16" : " float32");
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
