// What every optimizer holds. Owned by the handle; the inventory of the world knows it, so that it
// can go on in another world.
#pragma once

#include <lockstep/optim.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/inventory.h"
#include "torch/optim/update.h"

namespace lockstep::optim {

struct Optimizer::Impl : control::Member {
  using UpdateMaker = std::function<std::unique_ptr<Update>(Trained&)>;
  // rules[0] is for the parameters outside of all groups; rules[1 + i] for group_members[i].
  Impl(Replica& model, std::string kind, std::vector<std::unique_ptr<Rule>> rules,
       const std::vector<std::vector<torch::Tensor>>& group_members,
       UpdateMaker maker = make_update);
  ~Impl() override;
  void rebind(World& world) override;

  // Optimizer::step(). With a scale the gradients are divided by it. Returns false if the update was
  // skipped, because a gradient is not finite.
  bool step(std::optional<double> scale);

  std::vector<double> rates();  // learning rates, by rule
  void set_rate(std::size_t rule, double lr);
  void set_extras(const Extras& extras);  // BadInput if the update cannot do them
  void follow_scheduler();  // takes over the rates that a scheduler of LibTorch's has set
  std::vector<NamedTensor> tensors();  // the state, without what is packed

  // A program may ask for an average long after it has made the optimizer. So it goes to another world when its own turn
  // comes, and not with the optimizer.
  struct Average : control::Member {
    explicit Average(StateMemory& its_state) : state(its_state) {}
    void rebind(World&) override { state.rebind_average(); }
    StateMemory& state;
  };

  std::string name;
  Trained trained;
  std::shared_ptr<Average> average;  // null: there is none
  UpdateMaker make;
  std::unique_ptr<Update> update;
  class Scheduled;
  std::shared_ptr<Scheduled> scheduled;  // null until a scheduler of LibTorch's needs it

 private:
  void agree_on_options() const;
};

// Lets the folders above reach what an optimizer holds.
struct Inside {
  static Optimizer::Impl& of(const Optimizer& optimizer) { return *optimizer.impl_; }
};
inline Optimizer::Impl& inside(const Optimizer& optimizer) {
  return Inside::of(optimizer);
}

}  // namespace lockstep::optim
