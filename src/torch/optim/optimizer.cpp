#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "torch/optim/impl.h"
#include "torch/replica/tensors.h"

namespace lockstep::optim {
namespace {

// Elements below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 32768;

void* offset(void* data, std::size_t elements, DType dtype) {
  return static_cast<std::byte*>(data) + elements * size_of(dtype);
}

}  // namespace

Optimizer::Impl::Impl(Replica& replica, Kind its_kind, std::vector<std::unique_ptr<Rule>> its_rules,
                      const std::vector<std::vector<torch::Tensor>>& group_members)
    : model(replica.state()), kind(std::move(its_kind)), rules(std::move(its_rules)) {
  assign_groups(group_members);
  const double base = rules.front()->lr();
  for (const auto& rule : rules) ratios.push_back(base == 0 ? 1 : rule->lr() / base);
  const std::size_t bytes = std::max<std::size_t>(model->layout().bytes(), 1);
  for (std::size_t i = 0; i < kind.states.size(); ++i)
    memories.push_back(std::make_shared<Arena>(Arena::create(bytes)));
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

torch::Tensor Optimizer::Impl::parameter_of(std::size_t entry) const {
  return model->model().trained[model->layout().entries()[entry].registered].tensor;
}

void Optimizer::Impl::step() {
  model->check_attached();
  torch::NoGradGuard no_grad;
  ++steps;
  for (std::size_t entry = 0; entry < rule_of.size(); ++entry) update_entry(entry);
}

void Optimizer::Impl::update_entry(std::size_t entry) {
  const plan::Entry& place = model->layout().entries()[entry];
  torch::Tensor parameter = parameter_of(entry).detach();
  const bool in_order = parameter.is_non_overlapping_and_dense();
  torch::Tensor values = in_order ? parameter : parameter.contiguous();
  const auto update = [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin);
    Piece piece;
    piece.dtype = place.dtype;
    piece.parameter = offset(values.data_ptr(), first, place.dtype);
    piece.gradient = offset(model->gradients() + place.offset, first, place.dtype);
    for (const auto& memory : memories)
      piece.state.push_back(offset(memory->data() + place.offset, first, place.dtype));
    piece.count = static_cast<std::size_t>(end - begin);
    rules[rule_of[entry]]->update(piece, steps);
  };
  at::parallel_for(0, static_cast<std::int64_t>(place.count), kGrain, update);
  if (!in_order) parameter.copy_(values);
  // Whoever saved the parameter for a backward to come must find out, as after torch::optim.
  torch::autograd::impl::bump_version(parameter_of(entry));
}

torch::Tensor Optimizer::Impl::state_view(std::size_t memory, std::size_t entry) const {
  const torch::Tensor parameter = parameter_of(entry);
  const auto options = torch::TensorOptions().dtype(parameter.dtype());
  void* data = memories[memory]->data() + model->layout().entries()[entry].offset;
  const auto keep = [arena = memories[memory]](void*) {};
  if (parameter.is_non_overlapping_and_dense())
    return torch::from_blob(data, parameter.sizes(), parameter.strides(), keep, options);
  return torch::from_blob(data, parameter.sizes(), keep, options);
}

Optimizer::Optimizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Optimizer::~Optimizer() = default;

void Optimizer::step() {
  impl_->step();
}
void Optimizer::zero_grad() {
  impl_->model->zero_grad();
}
double Optimizer::lr() const {
  return impl_->rules.front()->lr();
}
void Optimizer::set_lr(double lr) {
  for (std::size_t i = 0; i < impl_->rules.size(); ++i) {
    impl_->rules[i]->set_lr(i == 0 ? lr : lr * impl_->ratios[i]);
  }
}
std::int64_t Optimizer::steps() const {
  return impl_->steps;
}
const std::string& Optimizer::name() const {
  return impl_->kind.name;
}

void Optimizer::set_steps(std::int64_t steps) {
  impl_->steps = steps;
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> tensors;
  const auto& entries = impl_->model->layout().entries();
  for (std::size_t memory = 0; memory < impl_->kind.states.size(); ++memory) {
    for (std::size_t entry = 0; entry < entries.size(); ++entry) {
      tensors.push_back({impl_->kind.states[memory] + "/" + entries[entry].name,
                         impl_->state_view(memory, entry)});
    }
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
  impl_->steps = steps;
}

}  // namespace lockstep::optim
