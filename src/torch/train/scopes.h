// States of a model that last as long as a scope.
#pragma once

#include <optional>
#include <utility>

#include "torch/device/device.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"

namespace lockstep::train {

// As long as it lives the model reduces what its banks hold and leaves its buffers alone, and the optimizer's updates are
// watched, if that is wanted; both are the user's again after, with no gradients.
class RunScope {
 public:
  struct Watched {
    bool updates = false;
    bool gradients = false;
  };
  RunScope(replica::Replicated& model, optim::Optimizer::Impl& optimizer,
           std::optional<replica::Sharded> sharded, Watched watched)
      : optimizer_(optimizer), run_(model, std::move(sharded)) {
    optimizer_.update->norm();  // throws, if that was bad and nobody knows yet
    if (watched.gradients) model.banks().watch(model.comm(), model.faults());
    model.faults().forget();
    optimizer_.update->forget();
    optimizer_.update->watch().switch_on(watched.updates);
  }
  ~RunScope() {
    optimizer_.update->watch().switch_on(false);
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  optim::Optimizer::Impl& optimizer_;
  replica::Replicated::Run run_;
};

// A module in eval(), as long as it lives.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& module) : module_(module) { module_.eval(); }
  ~EvaluationScope() { module_.train(); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::NoGradGuard no_grad_;
  torch::nn::Module& module_;
};

// On a GPU, a stream for training, which the default one cannot be; the model's hooks follow.
class DeviceScope {
 public:
  explicit DeviceScope(replica::Replicated& model) : model_(model) {
    if (!(model_.device().kind != DeviceKind::kCpu)) return;
    stream_.emplace(model_.device());
    model_.attachment().install_hooks();
  }
  ~DeviceScope() {
    if (!stream_) return;
    stream_.reset();
    model_.attachment().install_hooks();
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  replica::Replicated& model_;
  std::optional<device::StreamScope> stream_;
};

}  // namespace lockstep::train
