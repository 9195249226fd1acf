// Jobs with asynchronous steps, for tests: the same job by Lockstep, and for a given order by LibTorch alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/order.h"
#include "tests/torch/folder.h"
#include "tests/torch/local_jobs.h"
#include "torch/step/order_file.h"

namespace lockstep::testing::loops::asynchronous {

inline LocalSteps with(LocalSteps local, bool slows, double compensation) {
  local.asynchronous->slows_if_stale = slows;
  local.asynchronous->delay_compensation = compensation;
  return local;
}

inline LocalHow recording(LocalHow how, const std::string& order) {
  how.local.asynchronous->order = order;
  return how;
}
inline LocalHow replaying(LocalHow how, const std::string& order) {
  how.local.asynchronous->replay = order;
  return how;
}

// Two steps in one round; the last of step 0 comes behind those of step 1.
inline const plan::RoundOrder kOrder = {
    {0, 2},
    {{0, 1, 0}, {0, 0, 0}, {0, 2, 1}, {1, 1, 2}, {1, 0, 2}, {1, 3, 3}, {0, 3, 0}, {1, 2, 3}}};

// The head of an order of this job on this device.
inline std::string head_of(const LocalHow& how, Device device = {}) {
  const Folder folder;
  World world = World::over(connect_alone(), device);
  trained(world, recording(how, folder / "order"));
  return plan::order_head(steps::load_order(folder / "order").job, how.shards);
}

// The same job by LibTorch alone, for an order that a test has written.
class Plain {
 public:
  Plain(const LocalHow& how, const plan::RoundOrder& order,
        torch::Device device = torch::Device(torch::kCPU))
      : how_(how), device_(device), net_(net_on(how, device)), optimizer_(how.optimizer, *net_) {
    run(order);
  }
  std::vector<torch::Tensor> weights;

 private:
  using Tensors = std::vector<torch::Tensor>;
  static std::shared_ptr<models::Net> net_on(const LocalHow& how, torch::Device device) {
    auto net = net_of(how.model);
    net->to(device);
    return net;
  }
  void set(const Tensors& values) {
    const torch::NoGradGuard no_grad;
    const auto parameters = net_->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(values[i]);
  }

  // The weights after each update are kept, because gradients come from older ones. At the end of the round the weights of before
  // change by the mean over shards of what the round has changed.
  void run(const plan::RoundOrder& order) {
    const auto batches = batches_of_job(how_);
    std::vector<Tensors> after{copies_of(*net_)};
    for (const plan::OrderedUpdate& update : order.updates) {
      const Tensors& seen = after[static_cast<std::size_t>(update.seen)];
      set(seen);
      Batch batch = batches.at({update.step, update.shard});
      batch = {batch.data.to(device_), batch.target.to(device_), batch.samples};
      auto gradients = torch::autograd::grad({models::loss(*net_, batch)}, net_->parameters());
      Tensors now;
      for (const torch::Tensor& tensor : after.back()) now.push_back(tensor.clone());
      const double strength = how_.local.asynchronous->delay_compensation;
      for (std::size_t i = 0; i < now.size() && strength > 0; ++i) {
        const torch::Tensor& g = gradients[i];
        gradients[i] = g + (g * strength) * g * (now[i] - seen[i]);
      }
      const auto number = static_cast<std::int64_t>(after.size());
      const std::int64_t missed = number - 1 - update.seen;
      double share = 1.0 / how_.shards;
      if (how_.local.asynchronous->slows_if_stale && missed >= how_.shards)
        share *= static_cast<double>(how_.shards) / static_cast<double>(missed + 1);
      optimizer_.step(now, gradients, number, share);
      after.push_back(now);
    }
    for (std::size_t i = 0; i < after[0].size(); ++i)
      weights.push_back(after[0][i] - (after[0][i] - after.back()[i]));
  }

  LocalHow how_;
  torch::Device device_;
  std::shared_ptr<models::Net> net_;
  PlainOptimizer optimizer_;
};

}  // namespace lockstep::testing::loops::asynchronous
