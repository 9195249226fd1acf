// How a Replicated stays attached to a model that the program owns.
//
//   hook      of an accumulator: says that a gradient was added up. LibTorch drops the accumulator, and the hook with it,
//             in torch::load() and in module->to() of another type or device
//   watcher   of a parameter: runs before its gradient is added up, and stays whatever becomes of the accumulator
//   moved     a parameter whose values are not in the flat memory any more. Its watcher notices; at the end of the pass
//             the values are taken back, and the accumulator that there is then gets a hook
//
// A parameter belongs to the replica that was made last: the one before is retired, its hooks gone.
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <map>
#include <mutex>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/replica/replicated.h"

namespace lockstep::replica {
namespace {

// The replicas of this process by what they train. Workers that are threads of it train different tensors. Never
// destroyed: a model may be a global variable.
struct Owners {
  std::mutex mutex;
  std::map<const c10::TensorImpl*, std::weak_ptr<Replicated>> by_tensor;
};
Owners& owners() {
  static Owners& all = *new Owners;
  return all;
}

}  // namespace

// Says that the gradient of one entry has been accumulated.
class Replicated::Hook : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<Replicated> owner, std::size_t entry)
      : owner_(std::move(owner)), entry_(entry) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    const auto owner = owner_.lock();
    if (owner && !owner->retired_)  // a graph may keep the node of a replica that was replaced
      owner->gradient_ready(entry_, inputs.empty() ? torch::Tensor() : inputs.front());
    return outputs;
  }

 private:
  std::weak_ptr<Replicated> owner_;
  std::size_t entry_;
};

Replicated::~Replicated() {
  retire();
  const std::lock_guard lock(owners().mutex);
  for (const NamedTensor& named : model_.trained) {
    const auto found = owners().by_tensor.find(named.tensor.unsafeGetTensorImpl());
    if (found != owners().by_tensor.end() && found->second.expired())
      owners().by_tensor.erase(found);
  }
}

void Replicated::retire_earlier() {
  std::vector<std::shared_ptr<Replicated>> earlier;  // may end here, and not under the lock
  {
    const std::lock_guard lock(owners().mutex);
    for (const NamedTensor& named : model_.trained) {
      auto& owner = owners().by_tensor[named.tensor.unsafeGetTensorImpl()];
      if (auto before = owner.lock()) earlier.push_back(std::move(before));
      owner = weak_from_this();
    }
  }
  for (const auto& replica : earlier) replica->retire();
}

void Replicated::retire() {
  if (std::exchange(retired_, true)) return;
  accumulators_.clear();
  for (std::size_t i = 0; i < watchers_.size(); ++i)
    model_.trained[layout_.entries()[i].registered].tensor.remove_hook(watchers_[i]);
  watchers_.clear();
}

void Replicated::require_current() const {
  if (!retired_) return;
  throw BadInput(
      fmt::format("{} was wrapped again by a later data_parallel(): use what that returned, and an "
                  "optimizer made from it",
                  identity_.name));
}

// A node that somebody's graph keeps alive is the same as before, and has its hook.
void Replicated::install_hooks() {
  std::vector<std::weak_ptr<torch::autograd::Node>> before(accumulators_.begin(),
                                                           accumulators_.end());
  accumulators_.clear();
  for (std::size_t i = 0; i < layout_.entries().size(); ++i) {
    const torch::Tensor& parameter = model_.trained[layout_.entries()[i].registered].tensor;
    auto node = torch::autograd::impl::grad_accumulator(parameter);
    if (before.empty() || before[i].lock() != node)
      node->add_post_hook(std::make_unique<Hook>(weak_from_this(), i));
    accumulators_.push_back(std::move(node));  // the parameter itself holds it only weakly
  }
}

// For accumulators that are not those of before.
void Replicated::rehook() {
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    const torch::Tensor& parameter = model_.trained[layout_.entries()[i].registered].tensor;
    if (!parameter.requires_grad()) throw_frozen(layout_.entries()[i].name);
    auto node = torch::autograd::impl::grad_accumulator(parameter);
    if (node == accumulators_[i]) continue;
    node->add_post_hook(std::make_unique<Hook>(weak_from_this(), i));
    accumulators_[i] = std::move(node);
  }
}

void Replicated::throw_frozen(const std::string& parameter) {
  throw BadInput(
      fmt::format("{} was frozen after the model had been replicated: call data_parallel() again, "
                  "which replaces "
                  "this replica, and make its optimizer again",
                  parameter));
}

void Replicated::watch_parameters() {
  for (std::size_t i = 0; i < layout_.entries().size(); ++i) {
    const torch::Tensor& parameter = model_.trained[layout_.entries()[i].registered].tensor;
    watchers_.push_back(
        parameter.register_hook([owner = weak_from_this(), i](const torch::Tensor&) {
          if (const auto replica = owner.lock()) replica->gradient_comes(i);
        }));
  }
}

void Replicated::watch_module(Listing listing) {
  module_parameters_ = std::move(listing);
  at_first_ = module_parameters_();
}

// One that was registered since, or put in the place of another, would be trained on each worker alone.
void Replicated::check_module() const {
  if (parameters_.written_by_others()) {
    throw BadInput(fmt::format(
        "something other than lockstep::optim has updated {}, of which the workers of this host "
        "share "
        "one copy, as share_parameters and a Trainer want it: each worker would update it again",
        identity_.name));
  }
  if (!module_parameters_) return;
  const std::vector<torch::Tensor> now = module_parameters_();
  const bool same = std::equal(now.begin(), now.end(), at_first_.begin(), at_first_.end(),
                               [](const auto& a, const auto& b) { return a.is_same(b); });
  if (same) return;
  throw BadInput(
      fmt::format("{} has other parameters now than when it was replicated ({} and {} of them): "
                  "register all before data_parallel(), or call it again, which replaces this "
                  "replica, and make its optimizer again",
                  identity_.name, now.size(), at_first_.size()));
}

void Replicated::gradient_comes(std::size_t entry) {
  if (parameters_.holds(entry)) return;
  // One of another kind cannot be taken back: the error comes before anything has been added up.
  banks_[bank_in_use_].check(entry);
  begin_if_first();
  moved_.push_back(entry);
}

// Gradients whose hook was gone are handed in here, at the end of the pass.
void Replicated::take_back_moved() {
  for (const std::size_t entry : moved_) {
    parameters_.take_back(entry);
    if (ledger_.has(entry)) continue;  // an old graph has kept its accumulator
    banks_[bank_in_use_].adopt(entry);
    ledger_.mark(entry);
    since_.reached[entry] = true;
  }
  if (!moved_.empty()) rehook();
  moved_.clear();
}

void Replicated::check_attached() {
  require_current();
  if (pass_.active) {
    throw BadInput(
        "the last backward pass was broken off and left no average: call zero_grad() and run it "
        "again");
  }
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    banks_[bank_in_use_].check(i);
    if (!parameters_.holds(i)) parameters_.take_back(i);
  }
  rehook();
}

}  // namespace lockstep::replica
