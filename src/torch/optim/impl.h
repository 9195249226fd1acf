// What every optimizer holds, and the update rules behind one interface.
#pragma once

#include <lockstep/arena.h>
#include <lockstep/optim.h>

#include <memory>
#include <string>
#include <vector>

#include "torch/replica/replicated.h"

namespace lockstep::optim {

// A stretch of one parameter: its values, its gradient, and its part of each state memory.
struct Piece {
  DType dtype = DType::kFloat32;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  std::vector<void*> state;
  std::size_t count = 0;
};

// One update rule with its options.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual void update(const Piece& piece, std::int64_t step) const = 0;  // step from 1
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
};

struct Optimizer::Impl {
  struct Kind {
    std::string name;
    std::vector<std::string> states;  // names of the state memories, one value per element each
  };

  // rules[0] is for the parameters outside of all groups; rules[1 + i] for group_members[i].
  Impl(Replica& model, Kind kind, std::vector<std::unique_ptr<Rule>> rules,
       const std::vector<std::vector<torch::Tensor>>& group_members);

  void step();
  torch::Tensor state_view(std::size_t memory, std::size_t entry) const;

  std::shared_ptr<replica::Replicated> model;
  Kind kind;
  std::vector<std::unique_ptr<Rule>> rules;
  std::vector<double> ratios;        // of each rule's learning rate to that of the first
  std::vector<std::size_t> rule_of;  // by entry of the layout
  std::vector<std::shared_ptr<Arena>> memories;
  std::int64_t steps = 0;

 private:
  void assign_groups(const std::vector<std::vector<torch::Tensor>>& group_members);
  void update_entry(std::size_t entry);
  torch::Tensor parameter_of(std::size_t entry) const;
};

}  // namespace lockstep::optim
