#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <map>

#include "torch/optim/device_step.h"
#include "torch/optim/impl.h"
#include "torch/replica/agreement.h"
#include "torch/replica/tensors.h"

namespace lockstep::optim {
Optimizer::Impl::Impl(Replica& its_model, Kind its_kind,
                      std::vector<std::unique_ptr<Rule>> its_rules,
                      const std::vector<std::vector<torch::Tensor>>& group_members)
    : model(replica::Inside::of(its_model)),
      kind(std::move(its_kind)),
      rules(std::move(its_rules)),
      state_layout(model->layout()) {
  assign_groups(group_members);
  const double base = rules.front()->lr();
  for (const auto& rule : rules) ratios.push_back(base == 0 ? 1 : rule->lr() / base);
  Comm& comm = model->comm();
  if (model->parts().may_be_absent()) left_alone.assign(rule_of.size(), 0);
  make_memories();
  together = model->gradients().shared();
  agree_on_options();
  const auto& first_of = model->pieces().first_of_worker;
  const auto mine = static_cast<std::size_t>(together ? comm.rank() : 0);
  own = {first_of[mine], first_of[mine + 1]};
}

Optimizer::Impl::~Impl() = default;

void Optimizer::Impl::make_memories() {
  const auto wide = replica::layout_of_sums(model->layout());
  has_masters = (model->device().kind != DeviceKind::kCpu) && wide.has_value();
  if (has_masters) {
    state_layout = *wide;
    kind.states.emplace_back("master");
    versions.assign(state_layout.entries().size(), -1);
  }
  for (std::size_t i = 0; i < kind.states.size(); ++i) {
    memories.emplace_back(model->comm(), state_layout.bytes(), replica::Copies::kPerHost,
                          model->device());
  }
  const device::CurrentDevice current(model->device());
  if ((model->device().kind != DeviceKind::kCpu)) on_device = make_device_step(*this);
}

// Beside half parameters there may be others, which are their own masters.
bool Optimizer::Impl::has_master(std::size_t entry) const {
  return has_masters &&
         state_layout.entries()[entry].dtype != model->layout().entries()[entry].dtype;
}

void Optimizer::Impl::refresh_masters() {
  for (std::size_t entry = 0; entry < versions.size(); ++entry) {
    const torch::Tensor parameter = parameter_of(entry);
    if (!has_master(entry) || parameter._version() == versions[entry]) continue;
    state_view(memories.size() - 1, entry).copy_(parameter.detach());
  }
}

std::vector<double> Optimizer::Impl::rates() {
  follow_scheduler();
  std::vector<double> all;
  for (const auto& rule : rules) all.push_back(rule->lr());
  return all;
}

void Optimizer::Impl::prepare_clipping() const {
  if (on_device && clip_norm > 0) on_device->prepare_clipping();
}

double Optimizer::Impl::norm_of_last_step() const {
  return on_device && clip_norm > 0 ? on_device->norm() : last_norm;
}

void Optimizer::Impl::trust_masters() {
  for (std::size_t entry = 0; entry < versions.size(); ++entry)
    versions[entry] = static_cast<std::int64_t>(parameter_of(entry)._version());
}

void Optimizer::Impl::assign_groups(const std::vector<std::vector<torch::Tensor>>& group_members) {
  std::map<const c10::TensorImpl*, std::size_t> entry_of;
  for (std::size_t i = 0; i < model->layout().entries().size(); ++i)
    entry_of[parameter_of(i).unsafeGetTensorImpl()] = i;
  rule_of.assign(entry_of.size(), 0);
  for (std::size_t group = 0; group < group_members.size(); ++group) {
    for (const torch::Tensor& parameter : group_members[group]) {
      const auto found = entry_of.find(parameter.unsafeGetTensorImpl());
      if (found == entry_of.end()) {
        throw BadInput(fmt::format(
            "group {} of the optimizer has a parameter {} that is not a trained one of the model",
            group, replica::describe(parameter)));
      }
      if (rule_of[found->second] != 0) {
        throw BadInput(fmt::format("parameter {} is in two groups of the optimizer",
                                   model->layout().entries()[found->second].name));
      }
      rule_of[found->second] = group + 1;
    }
  }
}

// With other options replicas would part; where every worker updates a part, the parts would not fit together.
void Optimizer::Impl::agree_on_options() const {
  const CallName call(model->comm(), "making an optimizer");
  std::vector<replica::Property> properties{{"optimizer", kind.name}};
  for (std::size_t i = 0; i < rules.size(); ++i) {
    properties.push_back({fmt::format("options of group {}", i),
                          fmt::format("lr {} {}", rules[i]->lr(), rules[i]->options())});
  }
  const auto& entries = model->layout().entries();
  for (std::size_t entry = 0; entry < rule_of.size(); ++entry)
    properties.push_back({"group of " + entries[entry].name, std::to_string(rule_of[entry])});
  replica::agree(model->comm(), properties,
                 {"workers have different optimizers", "make the same one on every worker"});
}

torch::Tensor Optimizer::Impl::parameter_of(std::size_t entry) const {
  return model->model().trained[model->layout().entries()[entry].registered].tensor;
}

torch::Tensor Optimizer::Impl::state_view(std::size_t memory, std::size_t entry) const {
  const torch::Tensor parameter = parameter_of(entry);
  if (!has_masters) return memories[memory].view(state_layout.entries()[entry], parameter);
  const auto wide = replica::scalar_type(state_layout.entries()[entry].dtype);
  return memories[memory].view(state_layout.entries()[entry], torch::empty_like(parameter, wide));
}

Optimizer::Optimizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Optimizer::~Optimizer() = default;

// Where workers share memory they meet before the update. Elsewhere what they say travels while each updates its own
// copy, and is looked at after it.
void Optimizer::step() {
  impl_->follow_scheduler();
  const GradientSource averages = GradientSource::own(*impl_->model);
  if (impl_->shares_memory()) return impl_->step(averages);
  const Impl::Said said = impl_->say_step(averages);
  if (said.cannot) std::rethrow_exception(said.cannot);
  impl_->step(averages);
  impl_->hear_step(said);
}
void Optimizer::zero_grad() {
  impl_->model->zero_grad();
}
double Optimizer::lr() const {
  return impl_->rates().front();
}
std::vector<double> Optimizer::rates() const {
  return impl_->rates();
}
void Optimizer::set_lr(double lr) {
  for (std::size_t i = 0; i < impl_->rules.size(); ++i) {
    impl_->set_rate(i, i == 0 ? lr : lr * impl_->ratios[i]);
  }
}
std::int64_t Optimizer::steps() const {
  return impl_->steps;
}
void Optimizer::set_clip_norm(double most) {
  if (!(most >= 0)) throw BadInput(fmt::format("clip_norm is {:g}; it must be 0 or more", most));
  impl_->clip_norm = most;
  impl_->prepare_clipping();
}
double Optimizer::clip_norm() const {
  return impl_->clip_norm;
}
double Optimizer::last_norm() const {
  return impl_->norm_of_last_step();
}
const std::string& Optimizer::name() const {
  return impl_->kind.name;
}

void Optimizer::set_steps(std::int64_t steps) {
  impl_->steps = steps;
  impl_->forget_watched();
  impl_->trust_masters();
}

std::vector<NamedTensor> Optimizer::state() const {
  if (impl_->masters() != nullptr) {  // those that no step has read yet
    torch::NoGradGuard no_grad;
    const device::CurrentDevice current(impl_->model->device());
    impl_->refresh_masters();
  }
  std::vector<NamedTensor> tensors;
  const auto& entries = impl_->model->layout().entries();
  for (std::size_t memory = 0; memory < impl_->kind.states.size(); ++memory) {
    const bool masters = impl_->masters() == &impl_->memories[memory];
    for (std::size_t entry = 0; entry < entries.size(); ++entry) {
      if (masters && !impl_->has_master(entry)) continue;
      tensors.push_back({impl_->kind.states[memory] + "/" + entries[entry].name,
                         impl_->state_view(memory, entry)});
    }
  }
  for (std::size_t entry = 0; entry < impl_->left_alone.size(); ++entry) {
    tensors.push_back({"left_alone/" + entries[entry].name,
                       torch::from_blob(&impl_->left_alone[entry], {1}, torch::kInt64)});
  }
  return tensors;
}

void Optimizer::load_state(const std::vector<NamedTensor>& state, std::int64_t steps) {
  std::map<std::string, torch::Tensor> given;
  for (const auto& [name, tensor] : state) given[name] = tensor;
  std::vector<NamedTensor> mine = this->state();
  for (const auto& [name, tensor] : mine) {
    const auto found = given.find(name);
    const std::string saved = found == given.end() ? "nothing" : replica::describe(found->second);
    if (saved != replica::describe(tensor)) {
      throw Mismatch(fmt::format("optimizer state {} is {} and the saved one {}", name,
                                 replica::describe(tensor), saved));
    }
  }
  torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : mine) tensor.copy_(given[name]);
  set_steps(steps);
}

}  // namespace lockstep::optim
