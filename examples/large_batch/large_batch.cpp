// A batch of 8,192 in place of 256, on Fashion-MNIST, with the same epochs: what is lost, and what brings it back. The recipe
// is that of Goyal et al. 2017: a rate that is linear in the batch, after a warm-up. Beside it LARS and LAMB. The last column
// is what the noise scale says of the batch.
//
//   lockstep run -n 2 -- ./large_batch           prints the table; the same on any number of workers
//   lockstep run -n 2 -- ./large_batch quick     some seconds: synthetic data, smaller batches
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace nn = torch::nn;

enum class Rule { kSgd, kLars, kLamb };

struct Recipe {
  const char* name;
  Rule rule = Rule::kSgd;
  bool large = true;
  double lr = 0.05;     // of this batch, or scaled from the small one
  bool scaled = false;  // linear in the batch
  bool warm_up = false;
};
constexpr Recipe kRecipes[] = {
    {.name = "SGD", .large = false},
    {.name = "SGD, the same rate"},
    {.name = "SGD, linear rate", .scaled = true},
    {.name = "SGD, linear rate, warm-up", .scaled = true, .warm_up = true},
    {.name = "LARS, warm-up", .rule = Rule::kLars, .lr = 20, .warm_up = true},
    {.name = "LAMB, warm-up", .rule = Rule::kLamb, .lr = 0.02, .warm_up = true}};

struct Size {
  std::int64_t small, large, epochs;
};

struct Result {
  std::int64_t steps = 0;
  double accuracy = 0;
  lockstep::NoiseScale noise;
};

std::unique_ptr<lockstep::optim::Optimizer> optimizer_of(Rule rule, lockstep::Replica& model) {
  using namespace lockstep::optim;  // NOLINT: its names are LibTorch's
  if (rule == Rule::kLars) return std::make_unique<LARS>(model, LARSOptions{.weight_decay = 1e-4});
  if (rule == Rule::kLamb) return std::make_unique<LAMB>(model, LAMBOptions{});
  return std::make_unique<SGD>(model, SGDOptions{.momentum = 0.9, .weight_decay = 1e-4});
}

lockstep::Schedule rate_of(const Recipe& recipe, const Size& size, std::int64_t steps) {
  const std::int64_t batch = recipe.large ? size.large : size.small;
  const std::int64_t climbs = recipe.warm_up ? steps / 4 : 0;
  return lockstep::large_batch(
      {.lr = recipe.lr,
       .base_batch = recipe.scaled ? size.small : batch,
       .global_batch = batch,
       .warmup_steps = climbs,
       .start_lr = recipe.scaled ? recipe.lr : recipe.lr / static_cast<double>(climbs + 1),
       .then = [=](double peak) {
         return lockstep::lr_scheduler::CosineAnnealingLR{.lr = peak, .t_max = steps - climbs};
       }});
}

// Nothing if training diverges.
std::optional<Result> trained(lockstep::World& world, const lockstep::DataSplits& data,
                              const Recipe& recipe, const Size& size) {
  torch::manual_seed(0);
  const std::int64_t batch = recipe.large ? size.large : size.small;
  const std::int64_t steps = (data.train->size() + batch - 1) / batch * size.epochs;
  lockstep::Job job(world, {.global_batch = batch, .shards = 8, .seed = 7});
  // Batch norms see a shard: 32 or 1,024 samples.
  nn::Sequential net(nn::Flatten(), nn::Linear(784, 256), nn::BatchNorm1d(256), nn::ReLU(),
                     nn::Linear(256, 256), nn::BatchNorm1d(256), nn::ReLU(), nn::Linear(256, 10));
  auto model = lockstep::data_parallel(net, world);
  const auto optimizer = optimizer_of(recipe.rule, model);
  lockstep::Step step(
      job, "train", {optimizer.get()},
      [&](const lockstep::Shard& shard) {
        return torch::cross_entropy_loss(net->forward(shard.batch.data), shard.batch.target);
      },
      {.learning_rate = rate_of(recipe, size, steps), .noise_scale_every = recipe.large ? 2 : 16});
  Result result{.steps = steps};
  try {
    for (const auto& each : job.batches(data.train, {.epochs = size.epochs}))
      result.noise = step(each).noise_scale();
  } catch (const lockstep::BadInput&) {  // on every worker: the loss is not finite
    return std::nullopt;
  }
  const auto score = [&](const lockstep::Batch& part) -> lockstep::Score {
    const auto logits = net->forward(part.data);
    return {torch::cross_entropy_loss(logits, part.target).item<double>() * part.samples,
            (logits.argmax(1) == part.target).sum().item<std::int64_t>(), part.samples};
  };
  result.accuracy = job.evaluate(data.test, score).accuracy;
  return result;
}

lockstep::DataSplits load(bool quick) {
  if (!quick) {
    try {
      return lockstep::datasets::load("fashion-mnist");
    } catch (const lockstep::BadInput&) {
      std::fprintf(stderr, "Fashion-MNIST is not installed: synthetic pictures in its place\n");
    }
  }
  return lockstep::datasets::load(quick ? "synthetic:2048" : "synthetic:60000");
}

int main(int argc, char** argv) {
  auto world = lockstep::join();
  const bool quick = argc > 1 && std::string(argv[1]) == "quick";
  const lockstep::DataSplits data = load(quick);
  const Size size = quick ? Size{64, 512, 2} : Size{256, 8192, 10};
  if (world.leader())
    std::printf(
        "| recipe | batch | steps | test accuracy | critical batch size "
        "|\n|---|---|---|---|---|\n");
  for (const Recipe& recipe : kRecipes) {
    const auto result = trained(world, data, recipe, size);
    if (!world.leader()) continue;
    std::printf("| %s | %lld |", recipe.name,
                static_cast<long long>(recipe.large ? size.large : size.small));
    if (!result) {
      std::printf(" | diverges | |\n");
    } else {
      const auto critical = result->noise.critical_batch();
      std::printf(" %lld | %.2f %% | %s |\n", static_cast<long long>(result->steps),
                  100 * result->accuracy,
                  critical ? std::to_string(std::llround(*critical)).c_str() : "not known");
    }
    std::fflush(stdout);
  }
}
