#include "torch/optim/rules.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <bit>
#include <map>
#include <utility>

#include "base/hash.h"
#include "torch/replica/tensors.h"

namespace lockstep::optim {

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
