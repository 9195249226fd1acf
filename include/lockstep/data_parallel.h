// A model that trains on every worker of a world: it is copied to all of them, and gradients are averaged.
#pragma once

#include <lockstep/codec.h>
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

// What to do about a parameter that backward() did not reach.
enum class MissingGradient : std::uint8_t {
  // Throws BadInput with its name. Most often forward() forgot a layer.
  kError,
  // This worker contributes nothing to its gradient. If no worker reached the parameter, its gradient stays undefined,
  // and no update changes it, as with DDP's find_unused_parameters. This costs one more short message. Zeros count as a
  // gradient, so clear with model.zero_grad(): LibTorch 1.13's optimizers set earlier gradients to zero instead.
  kZero,
  // As kZero, for a graph that never changes: PyTorch's static_graph. The first synchronised pass finds out which
  // parameters each worker reaches, and the short message is sent only then. A later pass that reaches others throws
  // BadInput with their names. In a Step it is kZero.
  kStatic,
};

// Which values buffers, such as BatchNorm's statistics, have after a step.
enum class BufferSource : std::uint8_t {
  kLeader,  // the leader's; copied at the end of every synchronised backward
  kMean,    // the mean over workers, at the same time. Integers and bools are the leader's
  // The leader's, copied before forward, as PyTorch does: each model(x) is collective if the one before could
  // synchronise, so if it was outside of no_sync() and of NoGradGuard. model->forward(x) copies nothing, and needs
  // model.sync_buffers(). Not for a model in a Step.
  kLeaderBeforeForward,
  kOwn,  // each worker keeps its own
};

struct DataParallelOptions {
  // What the result means.
  MissingGradient missing_gradient = MissingGradient::kError;
  BufferSource buffers = BufferSource::kLeader;
  codec::Ptr codec = nullptr;  // gradients in fewer bytes (codec.h); null: as they are

  std::string name = {};  // in error messages; the same on every worker. Empty: the module's type

  // At every synchronised backward, compares a sample of the weights of all workers (on GPUs the sample of the backward
  // before). If replicas differ, for example because their learning rates differ, backward() throws Mismatch. Switch it
  // off if the weights differ on purpose.
  bool check_weights = true;

  // How fast it comes. Smaller buckets overlap more with backward; larger buckets need fewer messages.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  Algorithm algorithm = Algorithm::kAutomatic;

  // For measurements on a GPU: reduces even in a world of one worker (engine nccl), where there is one operand. This
  // shows what hooks, events, a kernel per bucket and the engine cost.
  bool force_collectives = false;
};

// Times in the last synchronised backward, counted from its first gradient.
struct BackwardTimes {
  std::chrono::nanoseconds first_launch{0};  // the first bucket was sent
  std::chrono::nanoseconds last_gradient{0};
  std::chrono::nanoseconds end{0};  // everything was averaged
  std::size_t buckets = 0;
  std::size_t launched_before_end = 0;  // buckets that were sent before the last gradient

  // The time that the reduction added to the backward pass.
  std::chrono::nanoseconds exposed() const { return end - last_gradient; }
};

// In its scope, backward passes add to the gradients of this worker and do not synchronise, as with DDP's no_sync. Only
// backward() must be inside.
//
// Threads:   the thread that uses the replica.
// Blocking:  never.
// Failure:   none.
// Ownership: keeps the replica alive.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<replica::Replicated> replica);  // null: does nothing
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<replica::Replicated> replica_;
};

// This worker's copy of a model that is given as lists of tensors: a torch::jit::Module, or anything else that is not a
// torch::nn module. For modules use DataParallel, below.
//
// The constructor compares names, shapes and dtypes of all workers and copies the leader's values to all. It makes
// every gradient a view of one flat memory in the fixed layout; on a GPU, only the small gradients. After backward()
// the gradients are the averages over all workers.
//
// Threads:   one caller at a time, for all replicas and optimizers of a world together. Every worker makes its
//            replicas, and runs their synchronised backward passes, in the same order.
// Blocking:  the constructor, backward(), synchronize() and sync_buffers() wait for the other workers, at most the
//            world's timeout.
// Failure:   Mismatch if models differ, with the parameter and the ranks, or if the CPUs compute with different
//            instructions, with their names; BadInput for a gradient that is missing, has another shape than its
//            parameter, or is part of a graph; PeerLost, Timeout. backward() throws them. After PeerLost or Timeout the
//            replica cannot be used.
// Ownership: shares the tensors. It is a handle: copies name the same replica. The world must outlive it.
class Replica {
 public:
  Replica(World& world, std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers,
          const DataParallelOptions& options = {});

  // Use it in place of loss.backward() if workers have different numbers of samples: the gradients become the mean over
  // all samples. Every worker calls it. A worker without samples calls it with 0, and the loss of an empty batch, if the
  // model has a SyncBatchNorm, and else synchronize(). In no_sync() it only adds.
  void backward(const torch::Tensor& loss, std::int64_t samples);

  // With false the scope does nothing: auto scope = model.no_sync(micro + 1 < parts).
  NoSync no_sync(bool suspends = true) { return NoSync(suspends ? state_ : nullptr); }

  // Averages the gradients that were added in no_sync(), without a backward pass. A worker that has no samples left
  // calls it to take part in a step.
  void synchronize();

  // Gives all workers the leader's buffers now; with kMean, the mean. Collective.
  void sync_buffers();

  // Clears all gradients. They are undefined until the next backward, which then need not add to zeros. Averages may
  // also be cleared in any other way. But only this call drops what no_sync() has added: otherwise the next average
  // counts those samples.
  void zero_grad();

  // Whether the values of all workers are equal bit by bit. Collective.
  bool identical();

  const std::vector<NamedTensor>& parameters() const;  // registration order, each tensor once
  const std::vector<NamedTensor>& buffers() const;
  std::size_t parameter_count() const;  // elements
  BackwardTimes last_backward() const;

 protected:
  // Sets the module, and a function that returns its parameters at any time. If these are not the first ones any more,
  // the next backward() throws BadInput.
  void set_module(std::function<std::vector<torch::Tensor>()> parameters,
                  std::weak_ptr<torch::nn::Module> module);

  // What BufferSource::kLeaderBeforeForward does.
  void before_forward();

 private:
  friend struct replica::Inside;
  std::shared_ptr<replica::Replicated> state_;
};

namespace replica {
// The parameters and buffers of a module by name, in registration order.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);
// The options; if they have no name, with the module's type as the name.
DataParallelOptions named_after(const torch::nn::Module& module, DataParallelOptions options);
}  // namespace replica

// A torch::nn module that trains on every worker. Use it like the module's holder. Lockstep does nothing in forward(),
// except for BufferSource::kLeaderBeforeForward.
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
    before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

 private:
  Module module_;
};

// Moves a module (a holder such as Net, or a shared_ptr) to the world's device and wraps it for training there.
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

// torch::save(model, …) and torch::load(model, …) save and load the module. Every worker loads.
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

// The weighted mean of a number over all workers; the same bits on every worker. Collective. An idle worker of
// UnevenInputs has no weight.
double mean(World& world, double value, double weight = 1);

}  // namespace lockstep
