#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <bit>
#include <map>
#include <type_traits>
#include <utility>

#include "base/hash.h"
#include "flat/update_element.h"
#include "flat/update_loops.h"
#include "torch/optim/impl.h"
#include "torch/replica/tensors.h"

namespace lockstep::optim {
namespace {

void check(bool good, const char* option, double value, const char* range) {
  if (!good) throw BadInput(fmt::format("{} is {:g}; it must be {}", option, value, range));
}

void check_common(double lr, double weight_decay) {
  check(lr >= 0, "lr", lr, "0 or more");
  check(weight_decay >= 0, "weight_decay", weight_decay, "0 or more");
}

// The learning rate of LibTorch's options, which were made from `mine`. Nothing else may differ.
template <typename TorchOptions>
double followed(TorchOptions mine, const torch::optim::OptimizerOptions& theirs) {
  const auto& given = static_cast<const TorchOptions&>(theirs);
  if (!(given.lr() >= 0))
    throw BadInput(fmt::format("a learning rate is {:g}; it must be 0 or more", given.lr()));
  mine.lr(given.lr());
  if (mine == given) return given.lr();
  throw BadInput(
      "an option of a parameter group was changed: once the optimizer has been made, only the "
      "learning rate can be");
}

template <typename Numbers>
std::vector<std::byte> bytes_of(const Numbers& numbers) {
  const auto* const first = reinterpret_cast<const std::byte*>(&numbers);
  return {first, first + sizeof numbers};
}

class SgdRule : public Rule {
 public:
  explicit SgdRule(const SGDOptions& options) : options_(options) {
    check_common(options.lr, options.weight_decay);
    check(options.momentum >= 0, "momentum", options.momentum, "0 or more");
    if (options.nesterov && (options.momentum <= 0 || options.dampening != 0))
      throw BadInput("nesterov needs a momentum above 0 and no dampening");
  }
  void update(const Elements& elements, std::int64_t step) const override {
    flat::sgd(elements.dtype, elements.parameter, elements.gradient, elements.state[0],
              elements.count, at(step));
  }
  flat::Parities update_with_parity(const Elements& elements, std::int64_t step) const override {
    return flat::sgd_with_parity(elements.dtype, elements.parameter, elements.gradient,
                                 elements.state[0], elements.count, at(step));
  }
  flat::UpdateRule device_rule() const override { return flat::UpdateRule::kSgd; }
  std::vector<std::byte> numbers(std::int64_t step) const override {
    return bytes_of(flat::element::numbers_of(at(step)));
  }
  int states() const override { return options_.momentum == 0 ? 0 : 1; }
  double lr() const override { return options_.lr; }
  void set_lr(double lr) override { options_.lr = lr; }
  std::unique_ptr<torch::optim::OptimizerOptions> as_torch() const override {
    return std::make_unique<torch::optim::SGDOptions>(torch_options());
  }
  void follow(const torch::optim::OptimizerOptions& given) override {
    options_.lr = followed(torch_options(), given);
  }
  std::string options() const override {
    return fmt::format("momentum {} dampening {} weight_decay {} nesterov {}", options_.momentum,
                       options_.dampening, options_.weight_decay, options_.nesterov);
  }

 private:
  torch::optim::SGDOptions torch_options() const {
    return torch::optim::SGDOptions(options_.lr)
        .momentum(options_.momentum)
        .dampening(options_.dampening)
        .weight_decay(options_.weight_decay)
        .nesterov(options_.nesterov);
  }
  flat::SgdStep at(std::int64_t step) const {
    return {options_.lr,           options_.momentum, options_.dampening,
            options_.weight_decay, options_.nesterov, step == 1};
  }
  SGDOptions options_;
};

// Adam and AdamW have the same options. They differ in LibTorch's type for these, and in how an
// element decays.
template <typename TorchOptions>
class AdamRule : public Rule {
 public:
  explicit AdamRule(const AdamOptions& options) : options_(options) {
    check_common(options.lr, options.weight_decay);
    check(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "at least 0, below 1");
    check(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "at least 0, below 1");
    check(options.eps >= 0, "eps", options.eps, "0 or more");
  }
  void update(const Elements& elements, std::int64_t step) const override {
    flat::adam(elements.dtype, elements.parameter, elements.gradient, memory_of(elements),
               elements.count, at(step));
  }
  flat::Parities update_with_parity(const Elements& elements, std::int64_t step) const override {
    return flat::adam_with_parity(elements.dtype, elements.parameter, elements.gradient,
                                  memory_of(elements), elements.count, at(step));
  }
  flat::UpdateRule device_rule() const override { return flat::UpdateRule::kAdam; }
  std::vector<std::byte> numbers(std::int64_t step) const override {
    return bytes_of(flat::element::numbers_of(at(step)));
  }
  int states() const override { return 2; }
  double lr() const override { return options_.lr; }
  void set_lr(double lr) override { options_.lr = lr; }
  std::unique_ptr<torch::optim::OptimizerOptions> as_torch() const override {
    return std::make_unique<TorchOptions>(torch_options());
  }
  void follow(const torch::optim::OptimizerOptions& given) override {
    options_.lr = followed(torch_options(), given);
  }
  std::string options() const override {
    return fmt::format("beta1 {} beta2 {} eps {} weight_decay {}", options_.beta1, options_.beta2,
                       options_.eps, options_.weight_decay);
  }

 private:
  TorchOptions torch_options() const {
    return TorchOptions(options_.lr)
        .betas({options_.beta1, options_.beta2})
        .eps(options_.eps)
        .weight_decay(options_.weight_decay);
  }
  static flat::AdamMemory memory_of(const Elements& elements) {
    return {elements.state[0], elements.state[1]};
  }
  flat::AdamStep at(std::int64_t step) const {
    constexpr bool kDecoupled = std::is_same_v<TorchOptions, torch::optim::AdamWOptions>;
    return {options_.lr,  options_.beta1,        options_.beta2,
            options_.eps, options_.weight_decay, kDecoupled,
            step};
  }
  AdamOptions options_;
};

std::unique_ptr<Rule> rule_of(const SGDOptions& options) {
  return std::make_unique<SgdRule>(options);
}
std::unique_ptr<Rule> rule_of(const AdamOptions& options) {
  return std::make_unique<AdamRule<torch::optim::AdamOptions>>(options);
}
std::unique_ptr<Rule> rule_of(const AdamWOptions& options) {
  return std::make_unique<AdamRule<torch::optim::AdamWOptions>>(
      AdamOptions{options.lr, options.beta1, options.beta2, options.eps, options.weight_decay});
}

template <typename Options>
std::shared_ptr<Optimizer::Impl> make(Replica& model, Optimizer::Impl::Kind kind,
                                      const Options& options,
                                      const std::vector<Group<Options>>& groups) {
  std::vector<std::unique_ptr<Rule>> rules;
  std::vector<std::vector<torch::Tensor>> members;
  rules.push_back(rule_of(options));
  for (const auto& group : groups) {
    rules.push_back(rule_of(group.options));
    members.push_back(group.parameters);
  }
  return std::make_shared<Optimizer::Impl>(model, std::move(kind), std::move(rules), members);
}

// SGD without momentum has no state. If one group has momentum, the memory is for all parameters.
Optimizer::Impl::Kind sgd_kind(const SGDOptions& options,
                               const std::vector<Group<SGDOptions>>& groups) {
  bool momentum = options.momentum != 0;
  for (const auto& group : groups) momentum = momentum || group.options.momentum != 0;
  return {"sgd", momentum ? std::vector<std::string>{"momentum"} : std::vector<std::string>{}};
}

}  // namespace

SGD::SGD(Replica& model, const SGDOptions& options, const std::vector<Group<SGDOptions>>& groups)
    : Optimizer(make(model, sgd_kind(options, groups), options, groups)) {}

Adam::Adam(Replica& model, const AdamOptions& options,
           const std::vector<Group<AdamOptions>>& groups)
    : Optimizer(make(model, {"adam", {"mean", "square"}}, options, groups)) {}

AdamW::AdamW(Replica& model, const AdamWOptions& options,
             const std::vector<Group<AdamWOptions>>& groups)
    : Optimizer(make(model, {"adamw", {"mean", "square"}}, options, groups)) {}

Groups::Groups(std::vector<std::unique_ptr<Rule>> rules, const replica::Parts& model,
               const std::vector<std::vector<torch::Tensor>>& members)
    : rules_(std::move(rules)) {
  const auto& entries = model.plan.layout.entries();
  std::map<const c10::TensorImpl*, std::size_t> entry_of;
  for (std::size_t i = 0; i < entries.size(); ++i)
    entry_of[model.parameter(i).unsafeGetTensorImpl()] = i;
  group_of_.assign(entries.size(), 0);
  for (std::size_t group = 0; group < members.size(); ++group) {
    for (const torch::Tensor& parameter : members[group]) {
      const auto found = entry_of.find(parameter.unsafeGetTensorImpl());
      if (found == entry_of.end()) {
        throw BadInput(fmt::format(
            "group {} of the optimizer has a parameter {} that is not a trained one of the model",
            group, replica::describe(parameter)));
      }
      if (group_of_[found->second] != 0) {
        throw BadInput(fmt::format("parameter {} is in two groups of the optimizer",
                                   entries[found->second].name));
      }
      group_of_[found->second] = group + 1;
    }
  }
  const double base = rules_.front()->lr();
  for (const auto& rule : rules_) ratios_.push_back(base == 0 ? 1 : rule->lr() / base);
  if (model.may_be_absent()) left_alone_.assign(entries.size(), 0);
}

std::vector<double> Groups::rates() const {
  std::vector<double> all;
  for (const auto& rule : rules_) all.push_back(rule->lr());
  return all;
}

std::uint64_t Groups::digest_of_rates() const {
  std::uint64_t digest = 0;
  for (const auto& rule : rules_)
    digest = base::mix64(digest ^ std::bit_cast<std::uint64_t>(rule->lr()));
  return digest;
}

void Groups::count_step(const std::vector<bool>& absent) {
  ++steps_;
  for (std::size_t entry = 0; entry < left_alone_.size(); ++entry)
    left_alone_[entry] += !absent.empty() && absent[entry] ? 1 : 0;
}

}  // namespace lockstep::optim
