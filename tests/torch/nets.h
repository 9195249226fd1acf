// Small models and worlds for the tests of the LibTorch layer.
#pragma once

#include <lockstep/data_parallel.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <vector>

#include "tests/support/workers.h"

namespace lockstep::testing {

struct TwoLayersImpl : torch::nn::Module {
  explicit TwoLayersImpl(std::int64_t inputs = 8, std::int64_t hidden = 16,
                         std::int64_t outputs = 4)
      : first(register_module("first", torch::nn::Linear(inputs, hidden))),
        second(register_module("second", torch::nn::Linear(hidden, outputs))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(TwoLayers);

// LibTorch's generator belongs to the process: one worker at a time seeds and draws.
inline std::mutex generator_mutex;

// A model whose initial values depend on `seed` alone.
template <typename Net, typename... Arguments>
Net seeded(std::uint64_t seed, Arguments... arguments) {
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(seed);
  return Net(arguments...);
}

// Samples that depend on `seed` alone.
inline torch::Tensor samples(std::uint64_t seed, std::vector<std::int64_t> shape) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(shape, generator);
}

// Runs `body` on every worker of a world of threads; rethrows the first failure.
inline void in_world(int workers, const std::string& engine,
                     const std::function<void(World&)>& body) {
  run_all({engine, workers}, [&](Comm& comm) {
    World world = World::over(comm.channel(1));
    body(world);
    world.comm().barrier().wait();
  });
}
inline void in_world(int workers, const std::function<void(World&)>& body) {
  in_world(workers, "thread", body);
}

// oneDNN, which knows no bfloat16 on some processors, is off as long as it lives.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before_); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;

 private:
  bool before_ = at::globalContext().userEnabledMkldnn();
};

// Those that move memory of the CPU and were built.
inline std::vector<std::string> cpu_engines() {
  std::vector<std::string> names;
  for (const EngineInfo& engine : engines()) {
    if (engine.built && engine.name != "nccl" && engine.name != "mpi") names.push_back(engine.name);
  }
  return names;
}

// The same, and how each worker ended.
inline std::vector<Outcome> outcomes_in_world(int workers, const std::function<void(World&)>& body,
                                              const std::string& engine = "thread") {
  return run_workers({engine, workers}, [&](Comm& comm) {
    World world = World::over(comm.channel(1));
    body(world);
  });
}

inline double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>();
}

}  // namespace lockstep::testing
