#include "torch/optim/wrapped.h"

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <cstring>
#include <set>
#include <typeinfo>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "torch/optim/impl.h"
#include "torch/replica/tensors.h"

namespace lockstep::optim {
namespace {

// The first line: LibTorch adds a backtrace to its errors.
std::string cause_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string bytes_of(torch::serialize::OutputArchive& archive) {
  std::string bytes;
  archive.save_to([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  return bytes;
}

// A digest of all options but the learning rate, if their class can write them.
std::string digest_of(const torch::optim::OptimizerOptions& options) {
  const auto copy = options.clone();
  copy->set_lr(0);
  torch::serialize::OutputArchive archive;
  try {
    std::as_const(*copy).serialize(archive);
  } catch (const c10::Error&) {
    return "not compared";
  }
  base::Sha256 digest;
  digest.update(bytes_of(archive));
  return base::to_hex(digest.finish()).substr(0, 16);
}

// One group of the optimizer. It computes nothing: WrappedUpdate calls step() for all groups.
class WrappedRule : public Rule {
 public:
  WrappedRule(std::shared_ptr<WrappedOptimizer> optimizer, std::size_t group)
      : optimizer_(std::move(optimizer)), group_(group) {}

  void update(const flat::Elements&, AtStep) const override {
    LOCKSTEP_CHECK(false, "a wrapped optimizer has no loop");
  }
  flat::Parities update_with_parity(const flat::Elements& elements, AtStep step) const override {
    update(elements, step);
    return {};
  }
  double lr() const override { return optimizer_->options(group_).get_lr(); }
  void set_lr(double lr) override { optimizer_->options(group_).set_lr(lr); }
  std::string options() const override { return digest_of(optimizer_->options(group_)); }
  std::unique_ptr<torch::optim::OptimizerOptions> as_torch() const override {
    return std::as_const(optimizer_->options(group_)).clone();
  }
  void follow(const torch::optim::OptimizerOptions& given) override { set_lr(given.get_lr()); }

 private:
  std::shared_ptr<WrappedOptimizer> optimizer_;
  std::size_t group_;
};

using Tensors = std::set<const c10::TensorImpl*>;

// The trained parameters of each group. Those that the model has frozen are left out: they get no
// gradient. BadInput if a parameter is not the model's, or if a trained one is missing.
std::vector<std::vector<torch::Tensor>> members_of(torch::optim::Optimizer& optimizer,
                                                   const replica::Parts& model) {
  Tensors missing;
  Tensors known;
  for (const auto& [name, tensor] : model.model.trained)
    missing.insert(tensor.unsafeGetTensorImpl());
  for (const auto& [name, tensor] : model.model.parameters)
    known.insert(tensor.unsafeGetTensorImpl());
  std::vector<std::vector<torch::Tensor>> members;
  for (const auto& group : optimizer.param_groups()) {
    members.emplace_back();
    for (const torch::Tensor& parameter : group.params()) {
      if (!known.contains(parameter.unsafeGetTensorImpl())) {
        throw BadInput(fmt::format("the optimizer has a parameter {} that the model does not have",
                                   replica::describe(parameter)));
      }
      if (missing.erase(parameter.unsafeGetTensorImpl()) > 0) members.back().push_back(parameter);
    }
  }
  for (const auto& [name, tensor] : model.model.trained) {
    if (!missing.contains(tensor.unsafeGetTensorImpl())) continue;
    throw BadInput(fmt::format(
        "the optimizer does not have {}, which the model trains: give it that, too, or freeze it "
        "before data_parallel()",
        name));
  }
  return members;
}

void refuse_half(const plan::Layout& layout) {
  for (const plan::Entry& entry : layout.entries()) {
    if (!flat::is_half(entry.dtype)) continue;
    throw BadInput(fmt::format(
        "{} is {}, and optim::Wrapped keeps no float32 masters: hold weights in float32, or use "
        "another optimizer of lockstep::optim",
        entry.name, lockstep::name(entry.dtype)));
  }
}

std::shared_ptr<Optimizer::Impl> wrap(Replica& model,
                                      std::shared_ptr<torch::optim::Optimizer> given) {
  const auto wrapped = std::make_shared<WrappedOptimizer>(std::move(given));
  const replica::Parts& parts = replica::inside(model).parts();
  refuse_half(parts.plan.layout);
  auto members = members_of(wrapped->get(), parts);
  std::vector<std::unique_ptr<Rule>> rules;
  for (std::size_t group = 0; group < members.size(); ++group)
    rules.push_back(std::make_unique<WrappedRule>(wrapped, group));
  members.erase(members.begin());  // rules[0] is for what is in no other group
  return std::make_shared<Optimizer::Impl>(
      model, "wrapped " + wrapped->name(), std::move(rules), members,
      [wrapped](Trained& trained) { return make_wrapped_update(trained, wrapped); });
}

}  // namespace

WrappedOptimizer::WrappedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer)
    : optimizer_(std::move(optimizer)) {
  if (optimizer_ == nullptr || optimizer_->param_groups().empty())
    throw BadInput("optim::Wrapped wants an optimizer that has parameters");
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer_.get()) != nullptr) {
    throw BadInput(
        "optim::Wrapped cannot take LBFGS, whose step() runs the loss several times: use it in the "
        "drop-in loop");
  }
  const torch::optim::Optimizer& given = *optimizer_;
  name_ = c10::demangle(typeid(given).name());
  try {
    for (std::size_t group = 0; group < optimizer_->param_groups().size(); ++group)
      options(group).set_lr(options(group).get_lr());
  } catch (const c10::Error&) {
    throw BadInput(fmt::format(
        "the options of {} have no get_lr() and set_lr(), which optim::Wrapped needs", name_));
  }
  const torch::Tensor bytes = pack();
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.data_ptr()),
                    static_cast<std::size_t>(bytes.numel()));
  saves_ = !archive.keys().empty();
}

void WrappedOptimizer::step(std::int64_t number) {
  try {
    optimizer_->step();
  } catch (const std::exception& error) {
    throw BadInput(fmt::format(
        "step() of {} has failed at step {}: {}; some weights may be new and others old: go on "
        "from a checkpoint",
        name_, number, cause_of(error)));
  }
}

torch::Tensor WrappedOptimizer::pack() const {
  if (!saves_ && !std::as_const(*optimizer_).state().empty()) {
    throw BadInput(fmt::format(
        "{} keeps state that its save() does not write: override save() and load(), or train "
        "without checkpoints",
        name_));
  }
  torch::serialize::OutputArchive archive;
  try {
    optimizer_->save(archive);
  } catch (const std::exception& error) {
    throw BadInput(fmt::format("save() of {} has failed: {}", name_, cause_of(error)));
  }
  const std::string bytes = bytes_of(archive);
  const auto count = static_cast<std::int64_t>(bytes.size());
  torch::Tensor packed = torch::empty({count}, torch::kUInt8);
  std::memcpy(packed.data_ptr(), bytes.data(), bytes.size());
  return packed;
}

void WrappedOptimizer::unpack(const torch::Tensor& bytes) {
  auto& groups = optimizer_->param_groups();
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> kept;
  kept.reserve(groups.size());
  for (const auto& group : groups) kept.push_back(group.options().clone());
  std::string failure;
  try {
    const torch::Tensor whole = bytes.contiguous();
    torch::serialize::InputArchive archive;
    // The bytes may be of a worker with another GPU.
    archive.load_from(static_cast<const char*>(whole.data_ptr()),
                      static_cast<std::size_t>(whole.numel()), groups[0].params()[0].device());
    optimizer_->load(archive);
  } catch (const std::exception& error) {
    failure = cause_of(error);
  }
  for (std::size_t group = 0; group < groups.size(); ++group)
    groups[group].set_options(std::move(kept[group]));
  // LibTorch adds an empty state for each parameter that had none.
  auto& state = optimizer_->state();
  for (auto one = state.begin(); one != state.end();)
    one = one->second == nullptr ? state.erase(one) : std::next(one);
  if (!failure.empty())
    throw Mismatch(fmt::format("the saved state does not fit {}: {}", name_, failure));
}

Wrapped::Wrapped(Replica& model, std::shared_ptr<torch::optim::Optimizer> optimizer)
    : Optimizer(wrap(model, std::move(optimizer))) {}

}  // namespace lockstep::optim
