#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <bit>
#include <cmath>
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
  if (!good || !std::isfinite(value))
    throw BadInput(fmt::format("{} is {:g}; it must be {}", option, value, range));
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

// What a Rule needs to know of each kind of options, as overloaded functions: torch_options(),
// step_at(), names() of all states, words() for all options but the learning rate, as checkpoints
// have them, and check_own(), which throws BadInput.

torch::optim::SGDOptions torch_options(const SGDOptions& of) {
  return torch::optim::SGDOptions(of.lr)
      .momentum(of.momentum)
      .dampening(of.dampening)
      .weight_decay(of.weight_decay)
      .nesterov(of.nesterov);
}
flat::SgdStep step_at(const SGDOptions& of, std::int64_t step) {
  return {of.lr, of.momentum, of.dampening, of.weight_decay, of.nesterov, step == 1};
}
constexpr StateNames names(const SGDOptions&) {
  return {"momentum"};
}
std::string words(const SGDOptions& of) {
  return fmt::format("momentum {} dampening {} weight_decay {} nesterov {}", of.momentum,
                     of.dampening, of.weight_decay, of.nesterov);
}
void check_own(const SGDOptions& of) {
  check(of.momentum >= 0, "momentum", of.momentum, "0 or more");
  check(true, "dampening", of.dampening, "finite");
  if (of.nesterov && (of.momentum <= 0 || of.dampening != 0))
    throw BadInput("nesterov needs a momentum above 0 and no dampening");
}

template <typename TorchOptions, typename Options>
TorchOptions torch_adam(const Options& of) {
  return TorchOptions(of.lr)
      .betas({of.beta1, of.beta2})
      .eps(of.eps)
      .weight_decay(of.weight_decay)
      .amsgrad(of.amsgrad);
}
torch::optim::AdamOptions torch_options(const AdamOptions& of) {
  return torch_adam<torch::optim::AdamOptions>(of);
}
torch::optim::AdamWOptions torch_options(const AdamWOptions& of) {
  return torch_adam<torch::optim::AdamWOptions>(of);
}
template <typename Options>
concept AnyAdam = std::is_same_v<Options, AdamOptions> || std::is_same_v<Options, AdamWOptions>;
template <AnyAdam Options>
flat::AdamStep step_at(const Options& of, std::int64_t step) {
  constexpr bool kDecoupled = std::is_same_v<Options, AdamWOptions>;
  return {of.lr, of.beta1, of.beta2, of.eps, of.weight_decay, kDecoupled, step, of.amsgrad};
}
template <AnyAdam Options>
constexpr StateNames names(const Options&) {
  return {"mean", "square", "max_square"};
}
template <AnyAdam Options>
std::string words(const Options& of) {
  return fmt::format("beta1 {} beta2 {} eps {} weight_decay {}{}", of.beta1, of.beta2, of.eps,
                     of.weight_decay, of.amsgrad ? " amsgrad true" : "");
}
template <AnyAdam Options>
void check_own(const Options& of) {
  check(of.beta1 >= 0 && of.beta1 < 1, "beta1", of.beta1, "at least 0, below 1");
  check(of.beta2 >= 0 && of.beta2 < 1, "beta2", of.beta2, "at least 0, below 1");
  check(of.eps >= 0, "eps", of.eps, "0 or more");
}

torch::optim::RMSpropOptions torch_options(const RMSpropOptions& of) {
  return torch::optim::RMSpropOptions(of.lr)
      .alpha(of.alpha)
      .eps(of.eps)
      .weight_decay(of.weight_decay)
      .momentum(of.momentum)
      .centered(of.centered);
}
flat::RmsPropStep step_at(const RMSpropOptions& of, std::int64_t) {
  return {of.lr, of.alpha, of.eps, of.weight_decay, of.momentum, of.centered};
}
constexpr StateNames names(const RMSpropOptions&) {
  return {"square", "mean", "momentum"};
}
std::string words(const RMSpropOptions& of) {
  return fmt::format("alpha {} eps {} weight_decay {} momentum {} centered {}", of.alpha, of.eps,
                     of.weight_decay, of.momentum, of.centered);
}
void check_own(const RMSpropOptions& of) {
  check(of.alpha >= 0 && of.alpha < 1, "alpha", of.alpha, "at least 0, below 1");
  check(of.eps >= 0, "eps", of.eps, "0 or more");
  check(of.momentum >= 0, "momentum", of.momentum, "0 or more");
}

torch::optim::AdagradOptions torch_options(const AdagradOptions& of) {
  return torch::optim::AdagradOptions(of.lr)
      .lr_decay(of.lr_decay)
      .weight_decay(of.weight_decay)
      .initial_accumulator_value(of.initial_accumulator_value)
      .eps(of.eps);
}
flat::AdagradStep step_at(const AdagradOptions& of, std::int64_t step) {
  return {of.lr, of.lr_decay, of.weight_decay, of.initial_accumulator_value, of.eps, step};
}
constexpr StateNames names(const AdagradOptions&) {
  return {"sum"};
}
std::string words(const AdagradOptions& of) {
  return fmt::format("lr_decay {} weight_decay {} initial_accumulator_value {} eps {}", of.lr_decay,
                     of.weight_decay, of.initial_accumulator_value, of.eps);
}
void check_own(const AdagradOptions& of) {
  check(of.lr_decay >= 0, "lr_decay", of.lr_decay, "0 or more");
  check(of.initial_accumulator_value >= 0, "initial_accumulator_value",
        of.initial_accumulator_value, "0 or more");
  check(of.eps >= 0, "eps", of.eps, "0 or more");
}

// LARS and LAMB without what they add to another rule.
SGDOptions base_of(const LARSOptions& of) {
  return {of.lr, of.momentum, of.dampening, of.weight_decay, of.nesterov};
}
AdamWOptions base_of(const LAMBOptions& of) {
  return {of.lr, of.beta1, of.beta2, of.eps, of.weight_decay};
}

torch::optim::SGDOptions torch_options(const LARSOptions& of) {
  return torch_options(base_of(of));
}
flat::LarsStep step_at(const LARSOptions& of, std::int64_t step) {
  return {of.lr, of.momentum, of.dampening, of.weight_decay, of.nesterov, step == 1};
}
constexpr StateNames names(const LARSOptions&) {
  return {"momentum"};
}
std::string words(const LARSOptions& of) {
  return fmt::format("{} trust_coefficient {} eps {} adapt_vectors {}", words(base_of(of)),
                     of.trust_coefficient, of.eps, of.adapt_vectors);
}
void check_own(const LARSOptions& of) {
  check_own(base_of(of));
  check(of.trust_coefficient > 0, "trust_coefficient", of.trust_coefficient, "above 0");
  check(of.eps >= 0, "eps", of.eps, "0 or more");
}

torch::optim::AdamWOptions torch_options(const LAMBOptions& of) {
  return torch_options(base_of(of));
}
flat::LambStep step_at(const LAMBOptions& of, std::int64_t step) {
  return {of.lr, of.beta1, of.beta2, of.eps, of.weight_decay, step};
}
constexpr StateNames names(const LAMBOptions&) {
  return {"mean", "square"};
}
std::string words(const LAMBOptions& of) {
  return fmt::format("{} adapt_vectors {}", words(base_of(of)), of.adapt_vectors);
}
void check_own(const LAMBOptions& of) {
  check_own(base_of(of));
}

// Layer-wise rules: which norm they need, and what they make of it.
template <typename Options>
constexpr LayerNorm layer_norm_of(const Options&) {
  return LayerNorm::kNone;
}
constexpr LayerNorm layer_norm_of(const LARSOptions&) {
  return LayerNorm::kGradient;
}
constexpr LayerNorm layer_norm_of(const LAMBOptions&) {
  return LayerNorm::kChange;
}
template <typename Options>
flat::element::Trust trust_of(const Options&) {
  return {.adapts = false};
}
flat::element::Trust trust_of(const LARSOptions& of) {
  return {of.trust_coefficient, of.weight_decay, of.eps};
}
flat::element::Trust trust_of(const LAMBOptions&) {
  return {};
}

template <typename Options>
class RuleOf : public Rule {
 public:
  explicit RuleOf(const Options& options) : options_(options), lr_(options.lr) {
    check(options.lr >= 0, "lr", options.lr, "0 or more");
    check(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more");
    check_own(options);
  }
  void update(const flat::Elements& elements, AtStep step) const override {
    flat::update(elements, at(step));
  }
  flat::Parities update_with_parity(const flat::Elements& elements, AtStep step) const override {
    return flat::update_with_parity(elements, at(step));
  }
  LayerNorm layer_norm() const override { return layer_norm_of(options_); }
  flat::element::Trust trust(std::int64_t dimensions) const override {
    flat::element::Trust trust = trust_of(options_);
    if constexpr (requires { options_.adapt_vectors; })
      trust.adapts = dimensions >= 2 || options_.adapt_vectors;
    return trust;
  }
  double squares_of_change(const flat::Elements& elements, std::int64_t step) const override {
    if constexpr (requires { flat::squares_of_change(elements, step_at(options_, step)); }) {
      return flat::squares_of_change(elements, step_at(options_, step));
    } else {
      return 0;
    }
  }
  StateNames states() const override {
    StateNames used = names(options_);
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!step_at(options_, 1).uses(i)) used[i] = nullptr;
    }
    return used;
  }
  double lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
  std::string options() const override { return words(options_); }
  std::unique_ptr<torch::optim::OptimizerOptions> as_torch() const override {
    return std::make_unique<decltype(torch_options(options_))>(torch_options(with(lr_)));
  }
  void follow(const torch::optim::OptimizerOptions& given) override {
    lr_ = followed(torch_options(options_), given);
  }
  flat::UpdateRule device_rule() const override { return flat::rule_of(step_at(with(lr_), 1)); }
  std::vector<std::byte> numbers(std::int64_t step) const override {
    const auto numbers = flat::element::numbers_of(step_at(with(lr_), step));
    const auto* const first = reinterpret_cast<const std::byte*>(&numbers);
    return {first, first + sizeof numbers};
  }

 private:
  Options with(double lr) const {
    Options options = options_;
    options.lr = lr;
    return options;
  }
  // A step that has a rate of its own may be taken while another thread sets the rule's.
  auto at(AtStep step) const {
    auto numbers = step_at(with(step.lr ? *step.lr : lr_), step.number);
    if constexpr (requires { numbers.trust; }) numbers.trust = step.trust;
    return numbers;
  }

  const Options options_;  // but for the learning rate
  double lr_;
};

template <typename Options>
std::shared_ptr<Optimizer::Impl> make(Replica& model, const char* name, const Options& options,
                                      const std::vector<Group<Options>>& groups) {
  std::vector<std::unique_ptr<Rule>> rules;
  std::vector<std::vector<torch::Tensor>> members;
  rules.push_back(std::make_unique<RuleOf<Options>>(options));
  for (const auto& group : groups) {
    rules.push_back(std::make_unique<RuleOf<Options>>(group.options));
    members.push_back(group.parameters);
  }
  return std::make_shared<Optimizer::Impl>(model, name, std::move(rules), members);
}

}  // namespace

SGD::SGD(Replica& model, const SGDOptions& options, const std::vector<Group<SGDOptions>>& groups)
    : Optimizer(make(model, "sgd", options, groups)) {}

Adam::Adam(Replica& model, const AdamOptions& options,
           const std::vector<Group<AdamOptions>>& groups)
    : Optimizer(make(model, "adam", options, groups)) {}

AdamW::AdamW(Replica& model, const AdamWOptions& options,
             const std::vector<Group<AdamWOptions>>& groups)
    : Optimizer(make(model, "adamw", options, groups)) {}

RMSprop::RMSprop(Replica& model, const RMSpropOptions& options,
                 const std::vector<Group<RMSpropOptions>>& groups)
    : Optimizer(make(model, "rmsprop", options, groups)) {}

Adagrad::Adagrad(Replica& model, const AdagradOptions& options,
                 const std::vector<Group<AdagradOptions>>& groups)
    : Optimizer(make(model, "adagrad", options, groups)) {}

LARS::LARS(Replica& model, const LARSOptions& options,
           const std::vector<Group<LARSOptions>>& groups)
    : Optimizer(make(model, "lars", options, groups)) {}

LAMB::LAMB(Replica& model, const LAMBOptions& options,
           const std::vector<Group<LAMBOptions>>& groups)
    : Optimizer(make(model, "lamb", options, groups)) {}

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

StateNames Groups::states() const {
  StateNames all{};
  for (const auto& rule : rules_) {
    const StateNames used = rule->states();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (used[i] != nullptr) all[i] = used[i];
    }
  }
  return all;
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
