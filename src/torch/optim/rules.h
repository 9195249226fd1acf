// Update rules behind one interface, which rule updates which parameter, and how many steps each
// parameter has had.
#pragma once

#include <lockstep/buffer.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flat/device_update.h"
#include "flat/parity.h"
#include "torch/replica/parts.h"

namespace lockstep::optim {

// Names of states, in the order of flat/update_loops.h. Null: the state is not used.
using StateNames = std::array<const char*, flat::kMostStates>;

// A step of one parameter.
struct AtStep {
  std::int64_t number = 1;        // counts from 1
  double trust = 1;               // of a layer-wise rule
  std::optional<double> lr = {};  // in place of the rule's
};

// Which norm a layer-wise rule needs beside that of the weights, before it writes.
enum class LayerNorm : std::uint8_t {
  kNone,  // the rule is not layer-wise
  kGradient,
  kChange,
};

// One update rule with its options. Owned by Groups. update() may run on several threads at a time.
class Rule {
 public:
  virtual ~Rule() = default;
  // The second also returns the parity of all that it updates in place, before and after.
  virtual void update(const flat::Elements& elements, AtStep step) const = 0;
  virtual flat::Parities update_with_parity(const flat::Elements& elements, AtStep step) const = 0;
  // A layer-wise rule: how it finds its trust in a parameter. If that needs the norm of the change:
  // the sum of squares of the changes of one block.
  virtual LayerNorm layer_norm() const { return LayerNorm::kNone; }
  virtual flat::element::Trust trust(std::int64_t /*dimensions*/) const {
    return {.adapts = false};
  }
  virtual double squares_of_change(const flat::Elements&, std::int64_t) const { return 0; }
  virtual StateNames states() const { return {}; }  // those that it reads and writes
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
  virtual std::string options() const = 0;  // everything else that decides its result

  // The options as LibTorch's type, for its schedulers. follow() takes the learning rate back from
  // there. BadInput if another option was changed.
  virtual std::unique_ptr<torch::optim::OptimizerOptions> as_torch() const = 0;
  virtual void follow(const torch::optim::OptimizerOptions& given) = 0;

  // For a GPU: which kernel, and the numbers that it needs for a step. A wrapped optimizer has none.
  virtual flat::UpdateRule device_rule() const { return {}; }
  virtual std::vector<std::byte> numbers(std::int64_t) const { return {}; }
};

// The parameter groups of an optimizer, and its count of steps. Owned by Trained.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   the constructor: BadInput for members that are not the model's, or in two groups.
// Ownership: owns the rules.
class Groups {
 public:
  // rules[0] is for the parameters outside of all groups; rules[1 + i] for members[i].
  Groups(std::vector<std::unique_ptr<Rule>> rules, const replica::Parts& model,
         const std::vector<std::vector<torch::Tensor>>& members);

  std::size_t count() const { return rules_.size(); }
  Rule& rule(std::size_t group) { return *rules_[group]; }
  const Rule& rule(std::size_t group) const { return *rules_[group]; }
  const Rule& rule_of(std::size_t entry) const { return *rules_[group_of_[entry]]; }
  // All rules of an optimizer are of one kind.
  LayerNorm layer_norm() const { return rules_.front()->layer_norm(); }
  // The states that a rule uses. If one group uses a state, its memory is for all parameters.
  StateNames states() const;
  std::size_t group_of(std::size_t entry) const { return group_of_[entry]; }
  std::size_t entries() const { return group_of_.size(); }

  // The learning rate of a group divided by that of group 0, when the optimizer was made.
  double ratio(std::size_t group) const { return ratios_[group]; }
  std::vector<double> rates() const;
  std::uint64_t digest_of_rates() const;

  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  // Counts a step that leaves parameters with absent gradients alone.
  void count_step(const std::vector<bool>& absent);
  // The steps of a parameter, without those that left it alone: torch::optim counts the same way.
  std::int64_t steps_of(std::size_t entry) const {
    return left_alone_.empty() ? steps_ : steps_ - left_alone_[entry];
  }
  // By entry: how many steps left it alone. Empty if gradients cannot be absent.
  std::vector<std::int64_t>& left_alone() { return left_alone_; }
  const std::vector<std::int64_t>& left_alone() const { return left_alone_; }

 private:
  std::vector<std::unique_ptr<Rule>> rules_;
  std::vector<double> ratios_;
  std::vector<std::size_t> group_of_;  // by entry of the layout
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> left_alone_;
};

}  // namespace lockstep::optim
