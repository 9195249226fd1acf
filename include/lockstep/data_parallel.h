// A model that trains on every worker of a world: replicated, hooked, averaged.
#pragma once

#include <lockstep/world.h>
#include <torch/torch.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

namespace replica {
class Replicated;
struct Inside;
}  // namespace replica

struct NamedTensor {
  std::string name = {};
  torch::Tensor tensor;
};

// What a parameter that backward() did not reach means.
enum class MissingGradient : std::uint8_t {
  // BadInput that names it: most often a layer that forward() forgot.
  kError,
  // This worker contributes nothing to it. A parameter that no worker reached keeps an undefined gradient, and no update
  // moves it: as DDP's find_unused_parameters, at the price of one more short message. Zeros count as a gradient: clear
  // with model.zero_grad(), since LibTorch 1.13's optimizers make zeros of gradients that were there once.
  kZero,
};

// Where the values of buffers, such as BatchNorm's statistics, come from after a step.
enum class BufferSource : std::uint8_t {
  kLeader,  // rank 0's, at the end of every synchronised backward
  kOwn,     // each worker keeps its own
};

struct DataParallelOptions {
  // What the result means.
  MissingGradient missing_gradient = MissingGradient::kError;
  BufferSource buffers = BufferSource::kLeader;

  // What messages call the model; the same on every worker. Empty: the module's type.
  std::string name = {};

  // Compares a sample of all workers' weights at every synchronised backward, on GPUs that of the one before: replicas that
  // have parted, such as by a learning rate that differs, are a Mismatch then. Switch it off for weights that differ on
  // purpose.
  bool check_weights = true;

  // Whether workers that share memory train one physical copy of the parameters. It saves memory, wants an optimizer of
  // lockstep::optim, and forbids writing to a parameter on one worker, or reading any while another worker is in step().
  bool share_parameters = false;

  // How fast it comes. Smaller buckets overlap more with backward, larger send fewer messages.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  Algorithm algorithm = Algorithm::kAutomatic;

  // On a GPU, reduces in a world of one, too, of the nccl engine, where there is one operand to add up: for measuring
  // what hooks, events, a kernel for each bucket and the engine cost.
  bool force_collectives = false;
};

// When the parts of the last synchronised backward happened, from its first gradient on.
struct BackwardTimes {
  std::chrono::nanoseconds first_launch{0};  // the first bucket went to the wire
  std::chrono::nanoseconds last_gradient{0};
  std::chrono::nanoseconds end{0};  // everything averaged
  std::size_t buckets = 0;
  std::size_t launched_before_end = 0;  // buckets on the wire before the last gradient

  // What the reduction added to the backward pass.
  std::chrono::nanoseconds exposed() const { return end - last_gradient; }
};

// Backward passes in its scope add to the gradients of this worker and synchronise nothing, as
// DDP's no_sync. Only the backward has to be inside.
//
// Threads:   that of the replica.
// Blocking:  never.
// Failure:   none.
// Ownership: keeps the replica.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<replica::Replicated> replica);  // null: does nothing
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<replica::Replicated> replica_;
};

// This worker's copy of a model given as lists of tensors: for a torch::jit::Module, or for
// anything else that is not a torch::nn module. DataParallel, below, is one for modules.
//
// The constructor compares names, shapes and dtypes across workers, copies the leader's values
// to all, and makes every gradient a view of one flat memory in the fixed layout; on a GPU, the small
// ones. backward() then leaves the average over workers in them.
//
// Threads:   one caller at a time, over all replicas and optimizers of a world; every worker makes its replicas, and
//            runs their synchronised backward passes, in the same order.
// Blocking:  the constructor, backward() and synchronize() wait for the other workers, at most the
//            world's timeout.
// Failure:   Mismatch that names the parameter and the ranks when models differ, and the instructions when CPUs
//            compute with different ones; BadInput for a gradient that is missing or, on a CPU, was moved out of its
//            place; PeerLost, Timeout. They come out of backward(); after PeerLost and Timeout the replica is of no further use.
// Ownership: shares the tensors; a handle, copies name the same replica. The world outlives it.
class Replica {
 public:
  Replica(World& world, std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers,
          const DataParallelOptions& options = {});

  // loss.backward(), where workers have different numbers of samples: the gradients become the mean
  // over all samples. Every worker calls it, or synchronize() if it has none; in no_sync() it adds
  // up.
  void backward(const torch::Tensor& loss, std::int64_t samples);

  // With false, does nothing: auto scope = model.no_sync(micro + 1 < parts).
  NoSync no_sync(bool suspends = true) { return NoSync(suspends ? state_ : nullptr); }

  // Averages what no_sync() has added up, without a backward pass of its own. A worker that has no
  // samples left takes part in a step with it.
  void synchronize();

  // Clears all gradients: they are undefined until the next backward, which need not add to zeros
  // then. Any other way of clearing averages is as good. What no_sync() has added up is dropped by this one alone: the
  // next average would count its samples.
  void zero_grad();

  // Whether the values of all workers are the same bits. Collective.
  bool identical();

  const std::vector<NamedTensor>& parameters() const;  // registration order, each tensor once
  const std::vector<NamedTensor>& buffers() const;
  std::size_t parameter_count() const;  // elements
  BackwardTimes last_backward() const;

 protected:
  // The module behind it, and what parameters it has at any time: others than at first are BadInput at the next
  // backward().
  void set_module(std::function<std::vector<torch::Tensor>()> parameters,
                  std::weak_ptr<torch::nn::Module> module);

 private:
  friend struct replica::Inside;
  std::shared_ptr<replica::Replicated> state_;
};

namespace replica {
// The parameters and buffers of a module by name, in registration order.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);
// The options with the module's type for a name, if they have none.
DataParallelOptions named_after(const torch::nn::Module& module, DataParallelOptions options);
}  // namespace replica

// A torch::nn module that trains on every worker: use it as the module's holder. Nothing of
// Lockstep's happens in forward().
//
// Threads, Blocking, Failure: as Replica.
// Ownership: shares the module.
template <typename Module>
class DataParallel : public Replica {
 public:
  DataParallel(Module module, World& world, const DataParallelOptions& options)
      : Replica(world, replica::parameters_of(*module), replica::buffers_of(*module),
                replica::named_after(*module, options)),
        module_(std::move(module)) {
    set_module([module = module_] { return module->parameters(); }, (*module_).weak_from_this());
  }

  auto* operator->() { return &*module_; }
  auto& operator*() { return *module_; }
  Module& module() { return module_; }
  const Module& module() const { return module_; }

  // forward()
  template <typename... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

 private:
  Module module_;
};

// Moves a module (a holder such as Net, or a shared_ptr) to the world's device and makes it
// train there in lockstep.
template <typename Module>
requires(!std::derived_from<Module, torch::nn::Module>) DataParallel<Module> data_parallel(
    Module module, World& world, const DataParallelOptions& options = {}) {
  module->to(torch::Device(world.device()));
  return DataParallel<Module>(std::move(module), world, options);
}

template <typename Module>
requires std::derived_from<std::remove_cvref_t<Module>, torch::nn::Module>
auto data_parallel(Module&& /*module*/, World& world, const DataParallelOptions& options = {}) {
  static_assert(sizeof(Module) == 0,
                "data_parallel() shares the module: pass std::make_shared<Net>(), or a holder made "
                "by TORCH_MODULE(Net)");
  return data_parallel(std::make_shared<std::remove_cvref_t<Module>>(), world, options);
}

// torch::save(model, …) and torch::load(model, …) are the module's. Every worker loads.
template <typename Module>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const DataParallel<Module>& model) {
  (*model.module()).save(archive);
  return archive;
}
template <typename Module>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           DataParallel<Module>& model) {
  (*model).load(archive);
  return archive;
}

// Replica::backward for all replicas that the loss depends on.
void backward(const torch::Tensor& loss, std::int64_t samples);

// The mean over workers of a number, weighted; the same bits on every worker. Collective.
double mean(World& world, double value, double weight = 1);

}  // namespace lockstep
