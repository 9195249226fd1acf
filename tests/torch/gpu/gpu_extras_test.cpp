// Optimizers and what comes with an update (clipping, norms, averages, scaling) on a real GPU, with the bits of the CPU:
// `make test-gpu` runs it.
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/optim.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/torch/nets.h"
#include "tests/torch/optimizers.h"

namespace lockstep::testing::gpu_extras {
namespace {

constexpr Device kGpuOfExtras{DeviceKind::kCuda, 0};
constexpr int kSteps = 6;

// Its loss has the gradients that the test gives: each is 1 · given, the same on every device.
struct FedImpl : torch::nn::Module {
  explicit FedImpl(torch::ScalarType type) {
    const std::vector<std::vector<std::int64_t>> shapes{{70, 90}, {90}, {5000}, {3, 3000}, {1, 7}};
    for (std::size_t i = 0; i < shapes.size(); ++i)
      all.push_back(register_parameter("p" + std::to_string(i), samples(i, shapes[i]).to(type)));
  }
  torch::Tensor loss(int step, double times) const {
    torch::Tensor sum;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto seed = static_cast<std::uint64_t>(100 * step) + i;
      const auto given =
          (samples(seed, all[i].sizes().vec()) * times).to(all[i].device(), all[i].scalar_type());
      const auto term = (all[i] * given).sum().to(torch::kFloat32);
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }
  std::vector<torch::Tensor> all;
};

struct Case {
  std::string optimizer;
  std::function<void(optim::Optimizer&)> set = [](optim::Optimizer&) {};
  torch::ScalarType type = torch::kFloat32;
  std::optional<double> scale = {};  // then the gradients of the third step overflow
};

struct Outcome {
  std::vector<NamedTensor> tensors;  // parameters and state, on the CPU
  std::vector<double> norms;
};

Outcome outcome(World world, const Case& of) {
  const auto net = std::make_shared<FedImpl>(of.type);
  auto model = data_parallel(net, world);
  const auto optimizer = make_optimizer(of.optimizer, model);
  of.set(*optimizer);
  std::optional<GradScaler> scaler;
  if (of.scale) scaler.emplace(GradScalerOptions{.init_scale = *of.scale});
  Outcome out;
  for (int step = 1; step <= kSteps; ++step) {
    const bool overflows = scaler && step == 3;
    model.zero_grad();
    const auto loss =
        net->loss(step, overflows ? std::numeric_limits<double>::infinity() : 0.5 * step);
    (scaler ? scaler->scale(loss) : loss).backward();
    if (scaler) {
      scaler->step(*optimizer);
      scaler->update();
    } else {
      optimizer->step();
    }
    out.norms.push_back(optimizer->last_norm());
    for (const optim::NamedNorm& norm : optimizer->last_norms()) out.norms.push_back(norm.norm);
  }
  for (const auto& item : net->named_parameters())
    out.tensors.push_back({item.key(), item.value().detach().cpu()});
  for (const auto& [name, tensor] : optimizer->state())
    out.tensors.push_back({name, tensor.cpu().clone()});
  return out;
}

void expect_the_bits_of_the_cpu(const Case& of, const std::string& what) {
  SCOPED_TRACE(of.optimizer + ", " + what);
  const Outcome here = outcome(World::over(connect_alone()), of);
  const Outcome there = outcome(World::over(connect_alone(), kGpuOfExtras), of);
  EXPECT_EQ(there.norms, here.norms);
  ASSERT_EQ(there.tensors.size(), here.tensors.size());
  for (std::size_t i = 0; i < here.tensors.size(); ++i) {
    EXPECT_EQ(there.tensors[i].name, here.tensors[i].name);
    EXPECT_TRUE(torch::equal(there.tensors[i].tensor, here.tensors[i].tensor))
        << here.tensors[i].name;
    EXPECT_TRUE(torch::isfinite(here.tensors[i].tensor.to(torch::kFloat32)).all().item<bool>());
  }
}

TEST(GpuExtras, ClippingNormsAndAveragesHaveTheBitsOfTheCpu) {
  for (const std::string& name : all_optimizer_names()) {
    expect_the_bits_of_the_cpu({name, [](auto& of) { of.keep_norms(); }}, "norms");
    const auto clipped = [](auto& of) {
      of.set_clip_norm(0.5);
      of.set_ema(0.9);
      of.keep_norms();
    };
    expect_the_bits_of_the_cpu({name, clipped}, "clipped by norm, averaged");
    expect_the_bits_of_the_cpu({name, clipped, torch::kFloat64}, "the same in float64");
    const auto largest = [](auto& of) { of.set_clip_norm(0.1, optim::Norm::kLargest); };
    expect_the_bits_of_the_cpu({name, largest}, "clipped by the largest element");
    const auto by_value = [](auto& of) {
      of.set_clip_value(0.2);
      of.set_ema(0.99);
    };
    expect_the_bits_of_the_cpu({name, by_value}, "clipped by value, averaged");
  }
}

TEST(GpuExtras, HalfTypesHaveTheBitsOfTheCpu) {
  for (const std::string& name : all_optimizer_names()) {
    for (const auto type : {torch::kBFloat16, torch::kFloat16}) {
      expect_the_bits_of_the_cpu({name, [](auto& of) { of.keep_norms(); }, type}, "half, norms");
      const auto largest = [](auto& of) { of.set_clip_norm(0.1, optim::Norm::kLargest); };
      expect_the_bits_of_the_cpu({name, largest, type}, "half, by the largest element");
      expect_the_bits_of_the_cpu({name, [](auto& of) { of.set_clip_value(0.3); }, type},
                                 "half, by value");
      expect_the_bits_of_the_cpu({name, [](auto& of) { of.set_ema(0.9); }, type}, "half, averaged");
    }
  }
}

TEST(GpuExtras, ScaledLossesHaveTheBitsOfTheCpu) {
  constexpr double kScale = 256;
  for (const std::string& name : all_optimizer_names()) {
    for (const auto type : {torch::kFloat32, torch::kFloat16}) {
      const auto kept = [](auto& of) { of.keep_norms(); };
      expect_the_bits_of_the_cpu({name, kept, type, kScale}, "scaled, norms");
      const auto clipped = [](auto& of) { of.set_clip_norm(0.5); };
      expect_the_bits_of_the_cpu({name, clipped, type, kScale}, "scaled, clipped by norm");
      const auto largest = [](auto& of) { of.set_clip_norm(0.1, optim::Norm::kLargest); };
      expect_the_bits_of_the_cpu({name, largest, type, kScale}, "scaled, by the largest element");
      const auto by_value = [](auto& of) { of.set_clip_value(0.2); };
      const Case limited{name, by_value, type, kScale};
      if (name == "lars") {
        EXPECT_THROW(outcome(World::over(connect_alone(), kGpuOfExtras), limited), BadInput);
      } else {
        expect_the_bits_of_the_cpu(limited, "scaled, by value");
      }
    }
  }
}

// The GPU skips the step, and the host hears of it some steps later, or when it asks.
TEST(GpuExtras, LayerWiseRulesSkipAStepThatIsNotFiniteAndTellIt) {
  for (const char* const name : {"lars", "lamb"}) {
    World world = World::over(connect_alone(), kGpuOfExtras);
    const auto net = std::make_shared<FedImpl>(torch::kFloat32);
    auto model = data_parallel(net, world);
    const auto optimizer = make_optimizer(name, model);
    const auto step = [&](double times) {
      model.zero_grad();
      net->loss(1, times).backward();
      optimizer->step();
    };
    step(1);
    const torch::Tensor before = net->all[0].detach().clone();
    step(std::numeric_limits<double>::infinity());
    EXPECT_THROW(optimizer->last_norm(), BadInput) << name;
    EXPECT_TRUE(torch::equal(net->all[0], before)) << name;
    step(1);
    optimizer->last_norm();
    EXPECT_TRUE(torch::isfinite(net->all[0]).all().item<bool>()) << name;
  }
}

}  // namespace
}  // namespace lockstep::testing::gpu_extras
