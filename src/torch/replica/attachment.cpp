#include "torch/replica/attachment.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "base/mutex.h"
#include "torch/replica/arrivals.h"
#include "torch/replica/parts.h"

namespace lockstep::replica {
namespace {

// The replicas of this process, by the tensors that they train. Behind a mutex, because workers may
// be threads of one process. Never destroyed, because a model may be a global variable that ends
// later.
struct Owners {
  base::Mutex mutex;
  std::map<const c10::TensorImpl*, std::weak_ptr<Attachment>> by_tensor LOCKSTEP_GUARDED_BY(mutex);
};
Owners& owners() {
  static Owners& all = *new Owners;
  return all;
}

// The replicas that a loss depends on, from the graph that LibTorch made of it.
std::vector<std::shared_ptr<Attachment>> replicas_of(const torch::Tensor& loss) {
  std::vector<std::shared_ptr<Attachment>> found;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> next{loss.grad_fn().get()};
  const base::Lock lock(owners().mutex);
  while (!next.empty()) {
    torch::autograd::Node* const node = next.back();
    next.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
    const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (leaf == nullptr) continue;
    const auto owner = owners().by_tensor.find(leaf->variable.unsafeGetTensorImpl());
    if (owner == owners().by_tensor.end()) continue;
    auto replica = owner->second.lock();
    if (replica && std::find(found.begin(), found.end(), replica) == found.end())
      found.push_back(std::move(replica));
  }
  return found;
}

}  // namespace

// Says that the gradient of one entry has been accumulated. Its owner is held weakly: a graph may
// keep the accumulator, and so the hook, longer than the replica lives.
class Attachment::Hook : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<Attachment> owner, std::size_t entry)
      : owner_(std::move(owner)), entry_(entry) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    const auto owner = owner_.lock();
    if (!owner || owner->retired_)  // a graph may keep the node of a replica that was replaced
      return outputs;
    const torch::Tensor incoming = inputs.empty() ? torch::Tensor() : inputs.front();
    // A node may hand on that there is no gradient: a checkpoint, if one of its outputs is not used.
    if (incoming.defined() || !owner->parts_.may_be_absent())
      owner->listener_->ready(entry_, incoming);
    return outputs;
  }

 private:
  std::weak_ptr<Attachment> owner_;
  std::size_t entry_;
};

Attachment::Attachment(Parts& parts, std::string name) : parts_(parts), name_(std::move(name)) {}

Attachment::~Attachment() {
  retire();
  const base::Lock lock(owners().mutex);
  for (const NamedTensor& named : parts_.model.trained) {
    const auto found = owners().by_tensor.find(named.tensor.unsafeGetTensorImpl());
    if (found != owners().by_tensor.end() && found->second.expired())
      owners().by_tensor.erase(found);
  }
}

void Attachment::attach(const std::shared_ptr<Attachment>& self) {
  self_ = self;
  retire_earlier();
  install_hooks();
  install_pre_hooks();
}

void Attachment::retire_earlier() {
  // Outside of the lock: this may be the last reference to one, and its destructor takes the lock.
  std::vector<std::shared_ptr<Attachment>> earlier;
  {
    const base::Lock lock(owners().mutex);
    for (const NamedTensor& named : parts_.model.trained) {
      auto& owner = owners().by_tensor[named.tensor.unsafeGetTensorImpl()];
      if (auto before = owner.lock()) earlier.push_back(std::move(before));
      owner = self_;
    }
  }
  for (const auto& replica : earlier) replica->retire();
}

void Attachment::retire() {
  if (std::exchange(retired_, true)) return;
  accumulators_.clear();
  for (std::size_t i = 0; i < pre_hooks_.size(); ++i)
    parts_.parameter(i).remove_hook(pre_hooks_[i]);
  pre_hooks_.clear();
}

void Attachment::require_current() const {
  if (!retired_) return;
  throw BadInput(
      fmt::format("{} was wrapped again by a later data_parallel(): use what that returned, and an "
                  "optimizer made from it",
                  name_));
}

// Lets go of the accumulators first, so that LibTorch makes new ones for the current stream. One
// that a graph keeps alive comes back, and has its hook already.
void Attachment::install_hooks() {
  std::vector<std::weak_ptr<torch::autograd::Node>> before(accumulators_.begin(),
                                                           accumulators_.end());
  accumulators_.clear();
  for (std::size_t i = 0; i < parts_.model.trained.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parts_.parameter(i));
    if (before.empty() || before[i].lock() != node)
      node->add_post_hook(std::make_unique<Hook>(self_, i));
    accumulators_.push_back(std::move(node));  // the parameter itself holds it only weakly
  }
}

// Hooks the accumulators that LibTorch has made since.
void Attachment::rehook() {
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    const torch::Tensor& parameter = parts_.parameter(i);
    if (!parameter.requires_grad()) throw_frozen(parts_.plan.layout.entries()[i].name);
    auto node = torch::autograd::impl::grad_accumulator(parameter);
    if (node == accumulators_[i]) continue;
    node->add_post_hook(std::make_unique<Hook>(self_, i));
    accumulators_[i] = std::move(node);
  }
}

void Attachment::install_pre_hooks() {
  for (std::size_t i = 0; i < parts_.model.trained.size(); ++i) {
    const auto pre_hook = [weak = self_, i](const torch::Tensor& gradient) {
      const auto self = weak.lock();
      return self ? self->before(i, gradient) : torch::Tensor();
    };
    pre_hooks_.push_back(parts_.parameter(i).register_hook(pre_hook));
  }
}

// Returns what is added up in place of the gradient; undefined: the gradient itself.
torch::Tensor Attachment::before(std::size_t entry, const torch::Tensor& gradient) {
  const bool moved = !parts_.parameters->holds(entry);
  const bool idle = listener_->idle();
  if (moved || idle) listener_->before(entry);
  if (moved) moved_.push_back(entry);
  return idle ? torch::zeros_like(gradient) : torch::Tensor();
}

void Attachment::remember_module(Listing parameters, std::weak_ptr<torch::nn::Module> module) {
  listing_ = std::move(parameters);
  module_ = std::move(module);
  at_first_ = listing_();
}

// A parameter that was registered or replaced since would be trained by each worker alone.
void Attachment::check_module() const {
  if (!listing_) return;
  const std::vector<torch::Tensor> now = listing_();
  const bool same = std::equal(now.begin(), now.end(), at_first_.begin(), at_first_.end(),
                               [](const auto& a, const auto& b) { return a.is_same(b); });
  if (same) return;
  throw BadInput(
      fmt::format("{} has other parameters now than when it was replicated ({} and {} of them): "
                  "register all before data_parallel(), or call it again, which replaces this "
                  "replica, and make its optimizer again",
                  name_, now.size(), at_first_.size()));
}

void Attachment::call_at_end() {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = self_.lock()] { self->listener_->end(); });  // kept until then: the pass needs it
}

std::vector<std::size_t> Attachment::take_back_moved() {
  for (const std::size_t entry : moved_) parts_.parameters->take_back(entry);
  if (!moved_.empty()) rehook();
  return std::exchange(moved_, {});
}

void Attachment::check(const FlatGradients& gradients) {
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    gradients.check(i);
    if (!parts_.parameters->holds(i)) parts_.parameters->take_back(i);
  }
  rehook();
}

bool others_are_hooked(const std::vector<const Attachment*>& known) {
  std::vector<std::shared_ptr<Attachment>> seen;  // ends after the lock, as in retire_earlier()
  const base::Lock lock(owners().mutex);
  for (const auto& [tensor, owner] : owners().by_tensor) {
    seen.push_back(owner.lock());
    if (seen.back() && std::find(known.begin(), known.end(), seen.back().get()) == known.end())
      return true;
  }
  return false;
}

Expectation::Expectation(const torch::Tensor& loss, double weight) : replicas_(replicas_of(loss)) {
  for (const auto& replica : replicas_) replica->listener_->expect(weight);
}
Expectation::~Expectation() {
  for (const auto& replica : replicas_) replica->listener_->expect(std::nullopt);
}

}  // namespace lockstep::replica
