// A worker of the scripts beside it (gpu_*.sh). Without arguments: trains, and on rank 1 asks for more memory than there is in
// the sixth step.
// With "parts": a loop of its own with LibTorch's optimizer, which has another learning rate on rank 1.
// With "norms": one SyncBatchNorm, beside LibTorch's on the batches of all workers; says how far they are apart. With a
// folder, too, it leaves its numbers there for sync_batchnorm.py.
// With "loop" and a model, or "gan": the loops of step_test, which say the hash of their weights. "noisy": a wrapped
// optimizer, and noise on gradients. "synced": a cnn with SyncBatchNorm, some of whose workers have no samples.
// With "steps", a model, a folder and a number: the loop so many times, with a log of each in FOLDER/RANK.TIME; see
// gpu_step_log.h.
// With "local": the jobs of gpu_local.h, whose hashes it says; with a folder for checkpoints, and the step at which they end.
// With "asynchronous", "record" or "replay", and a folder: those of gpu_local.h with asynchronous steps, whose orders are there.
// All of these have deterministic kernels, since their bits are compared; with one more word, "free", those that LibTorch prefers.
// With "uneven": a drop-in loop with SyncBatchNorm, in which rank 1 has more batches than rank 0, beside LibTorch's with
// the batches of both; says how far they are apart. With "drop-in": what gpu_drop_in.h says.
#include <lockstep/errors.h>
#include <lockstep/optim.h>
#include <lockstep/sync_batchnorm.h>
#include <lockstep/trainer.h>
#include <lockstep/uneven_inputs.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/torch/gpu/gpu_drop_in.h"
#include "tests/torch/gpu/gpu_local.h"
#include "tests/torch/gpu/gpu_step_log.h"
#include "tests/torch/loops.h"
#include "torch/step/arithmetic.h"

namespace {

void train_apart(lockstep::World& world) {
  lockstep::testing::TwoLayers net(64, 64, 10);
  auto model = lockstep::data_parallel(net, world);
  torch::optim::SGD optimizer(net->parameters(), world.rank() == 1 ? 0.02 : 0.01);
  const auto x = lockstep::testing::samples(1, {32, 64}).to(torch::kCUDA);
  for (int step = 0; step < 10; ++step) {
    model.zero_grad();
    model(x).pow(2).mean().backward();
    optimizer.step();
  }
}

// Outputs, gradients of inputs and running statistics, in float64. The first worker has more samples.
double distance_of_norms(lockstep::World& world) {
  using lockstep::testing::largest_difference;
  using lockstep::testing::samples;
  const auto on_gpu = torch::TensorOptions(torch::kFloat64).device(torch::kCUDA);
  const auto make = [&] {
    torch::nn::BatchNorm2d layer(4);
    layer->to(on_gpu.device(), torch::kFloat64);
    return layer;
  };
  auto layer = make();
  auto plain = make();
  lockstep::convert_sync_batchnorm(*layer, world);
  const auto size = static_cast<std::int64_t>(world.size());
  const auto all = samples(3, {3 * size + 2, 4, 5, 5}).to(on_gpu).requires_grad_();
  const auto factors = samples(4, {3 * size + 2, 4, 5, 5}).to(on_gpu);
  const std::int64_t first = world.rank() == 0 ? 0 : 3 * world.rank() + 2;
  const std::int64_t last = 3 * world.rank() + 5;
  const auto own = all.detach().slice(0, first, last).clone().requires_grad_();
  const auto output = layer(own);
  (output * factors.slice(0, first, last)).sum().backward();
  const auto whole = plain(all);
  (whole * factors).sum().backward();
  return std::max({largest_difference(output, whole.slice(0, first, last)),
                   largest_difference(own.grad(), all.grad().slice(0, first, last)),
                   largest_difference(layer->running_mean, plain->running_mean),
                   largest_difference(layer->running_var, plain->running_var)});
}

// float32, in a file of the folder.
void leave(const std::string& path, const torch::Tensor& tensor) {
  const auto values = tensor.detach().to(torch::kCPU, torch::kFloat32).contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(values.data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
}

// A pass through a SyncBatchNorm in this type. The first worker has more samples.
void leave_norms(lockstep::World& world, const std::string& folder, torch::ScalarType type) {
  using lockstep::testing::samples;
  torch::nn::BatchNorm2d layer(4);
  layer->to(torch::kCUDA);
  lockstep::convert_sync_batchnorm(*layer, world);
  const std::vector<std::int64_t> shape{world.rank() == 0 ? 5 : 3, 4, 5, 5};
  const auto seed = static_cast<std::uint64_t>(10 + world.rank());
  const auto input = samples(seed, shape).to(torch::kCUDA, type).requires_grad_();
  const auto factors = samples(seed + 100, shape).to(torch::kCUDA, type);
  const auto output = layer(input);
  (output * factors).sum().backward();
  const std::string first = folder + "/" + (type == torch::kFloat32 ? "float32" : "bfloat16") +
                            "." + std::to_string(world.rank()) + ".";
  leave(first + "input", input);
  leave(first + "factors", factors);
  leave(first + "output", output);
  leave(first + "of_input", input.grad());
  leave(first + "of_weight", layer->weight.grad());
  leave(first + "of_bias", layer->bias.grad());
  leave(first + "mean", layer->running_mean);
  leave(first + "variance", layer->running_var);
}

namespace loops = lockstep::testing::loops;

std::string noisy(lockstep::World& world) {
  const auto net = loops::net_of("mlp");
  auto model = lockstep::data_parallel(net, world);
  lockstep::optim::Wrapped optimizer(
      model, std::make_shared<torch::optim::SGD>(net->parameters(),
                                                 torch::optim::SGDOptions(0.1).momentum(0.9)));
  lockstep::StepOptions options;
  options.before_update = [&](std::int64_t) {
    for (auto& one : net->parameters()) one.mutable_grad().add_(torch::randn_like(one), 1e-3);
  };
  torch::manual_seed(100 + static_cast<std::uint64_t>(world.rank()));  // must not matter
  lockstep::Job job(world, loops::job_options());
  lockstep::Step step(
      job, "train", {&optimizer},
      [&](const lockstep::Shard& shard) { return lockstep::models::loss(*net, shard.batch); },
      options);
  for (const auto& batch : job.batches(loops::data_of("mlp"), {.steps = loops::kSteps}))
    step(batch);
  return job.weights_sha256();
}

std::string synced(lockstep::World& world) {
  lockstep::Job job(world, loops::job_options());
  loops::One one(world, "cnn");
  lockstep::convert_sync_batchnorm(*one.net, world);
  lockstep::Step step(job, "train", {&one.optimizer}, one.loss());
  for (const auto& batch : job.batches(loops::data_of("cnn"), {.steps = loops::kSteps}))
    step(batch);
  return job.weights_sha256();
}

// Rank 0 has 2 batches of 4 samples, and each next rank one more.
double distance_of_uneven(lockstep::World& world) {
  using lockstep::testing::samples;
  const auto batch_of = [](int rank, int step) {
    return samples(static_cast<std::uint64_t>(100 * rank + step), {4, 6}).to(torch::kCUDA);
  };
  const auto make = [] {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                              torch::nn::Linear(8, 1));
    net->to(torch::kCUDA);
    return net;
  };
  auto net = make();
  lockstep::convert_sync_batchnorm(*net, world);
  auto model = lockstep::data_parallel(net, world);
  lockstep::optim::SGD optimizer(model, {.lr = 0.1});
  std::vector<torch::Tensor> batches;
  for (int step = 0; step < 2 + world.rank(); ++step)
    batches.push_back(batch_of(world.rank(), step));
  lockstep::UnevenInputs inputs(batches, world);
  for (const torch::Tensor& batch : inputs) {
    optimizer.zero_grad();
    lockstep::backward(model->forward(batch).pow(2).mean(), batch.size(0));
    optimizer.step();
  }
  auto plain = make();
  torch::optim::SGD stock(plain->parameters(), 0.1);
  for (int step = 0; step < 1 + world.size(); ++step) {
    std::vector<torch::Tensor> all;
    for (int rank = std::max(0, step - 1); rank < world.size(); ++rank)
      all.push_back(batch_of(rank, step));
    stock.zero_grad();
    plain->forward(torch::cat(all)).pow(2).mean().backward();
    stock.step();
  }
  double distance = 0;
  for (std::size_t i = 0; i < plain->parameters().size(); ++i)
    distance = std::max(distance, lockstep::testing::largest_difference(net->parameters()[i],
                                                                        plain->parameters()[i]));
  return distance;
}

std::string looped(lockstep::World& world, const std::string& model) {
  if (model == "gan") return loops::Gan(world).run(loops::kSteps);
  if (model == "noisy") return noisy(world);
  if (model == "synced") return synced(world);
  return loops::trained_by_loop(world, model);
}

// LibTorch's own choice for a convolution may be a kernel that adds in the order in which its threads come, or one that
// was chosen because another had failed. Then the bits depend on what else the GPU does. `lockstep train` makes the same
// choice; the variable must be there before cuBLAS is.
void use_deterministic_kernels() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  lockstep::steps::use_deterministic_operators(true);
}

// What the modes "loop", "steps", "local" and "asynchronous" do. False for other modes.
bool ran_loops(lockstep::World& world, const std::vector<std::string>& words) {
  if (words.size() >= 4 && words[0] == "steps") {
    for (int time = 0; time < std::atoi(words[3].c_str()); ++time) {
      lockstep::testing::log_steps(
          world, words[1],
          words[2] + "/" + std::to_string(world.rank()) + "." + std::to_string(time));
    }
    return true;
  }
  if (!words.empty() && words[0] == "local") {
    const std::string folder = words.size() > 1 ? words[1] : "";
    const int stop = words.size() > 2 ? std::atoi(words[2].c_str()) : 0;
    std::printf("%s", lockstep::testing::local_hashes(world, folder, stop).c_str());
    return true;
  }
  if (words.size() > 2 && words[0] == "asynchronous") {
    using lockstep::testing::Orders;
    const Orders orders = words[1] == "replay" ? Orders::kReplayed : Orders::kRecorded;
    std::printf("%s", lockstep::testing::asynchronous_hashes(world, words[2], orders).c_str());
    return true;
  }
  if (words.size() < 2 || words[0] != "loop") return false;
  std::printf("weights %s\n", looped(world, words[1]).c_str());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT: this is the program
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::set<std::string> compared = {"loop", "steps", "local", "asynchronous"};
  if (!words.empty() && compared.contains(words[0]) && words.back() != "free")
    use_deterministic_kernels();
  World world = join();
  try {
    if (ran_loops(world, words)) return 0;
    if (argc > 2 && std::string(argv[1]) == "norms") {
      for (const auto type : {torch::kFloat32, torch::kBFloat16}) leave_norms(world, argv[2], type);
      return 0;
    }
    if (argc > 1 && std::string(argv[1]) == "norms") {
      const double distance = distance_of_norms(world);
      std::printf("norms are %g apart\n", distance);
      return distance < 1e-12 ? 0 : 1;
    }
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "uneven" || mode == "drop-in") {
      const double distance = mode == "uneven" ? distance_of_uneven(world)
                                               : lockstep::testing::distance_of_drop_in(world);
      std::printf("%g apart\n", distance);
      return distance < 1e-5 ? 0 : 1;
    }
    if (argc > 1) {
      train_apart(world);
      return 0;
    }
    lockstep::testing::TwoLayers net(64, 64, 10);
    auto model = data_parallel(net, world);
    const auto optimizer = std::make_shared<optim::SGD>(model, optim::SGDOptions{});
    int passes = 0;
    const auto loss = [&](const Batch& batch) {
      torch::Tensor waste;
      if (++passes == 6 && world.rank() == 1)
        waste = torch::empty({std::int64_t{1} << 42}, batch.data.options());
      return net->forward(batch.data).pow(2).mean();
    };
    const auto data = tensor_dataset(lockstep::testing::samples(1, {256, 64}),
                                     lockstep::testing::samples(2, {256}));
    TrainerParts parts{model, net.ptr(), optimizer, data, nullptr, loss, nullptr, nullptr};
    TrainerOptions options{.steps = 1000, .global_batch = 32, .shards = 2, .cuda_graphs = false};
    Trainer(world, parts, options).run();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "worker %d: %s\n", world.rank(), error.what());
    return 1;
  }
}
