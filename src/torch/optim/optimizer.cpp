#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "torch/optim/impl.h"
#include "torch/replica/agreement.h"
#include "torch/replica/tensors.h"

namespace lockstep::optim {

Optimizer::Impl::Impl(Replica& model, std::string kind, std::vector<std::unique_ptr<Rule>> rules,
                      const std::vector<std::vector<torch::Tensor>>& group_members,
                      UpdateMaker maker)
    : name(std::move(kind)),
      trained{replica::Inside::of(model),
              Groups(std::move(rules), replica::inside(model).parts(), group_members),
              StateMemory(replica::inside(model).parts(), trained.groups.states())},
      make(std::move(maker)),
      update(make(trained)) {
  agree_on_options();
}

Optimizer::Impl::~Impl() = default;

// The inventory calls it after the model's rebind(), in the order in which they were made.
void Optimizer::Impl::rebind(World&) {
  if (update) update->norm();  // on a GPU: throws if the last step had a bad norm
  update.reset();
  trained.state.rebind();
  update = make(trained);
  update->accept(trained.extras);
  agree_on_options();
}

std::vector<double> Optimizer::Impl::rates() {
  follow_scheduler();
  return trained.groups.rates();
}

// With different options replicas would differ; where each worker updates a slice, slices would not
// fit together.
void Optimizer::Impl::agree_on_options() const {
  Comm& comm = trained.model->comm();
  const CallName call(comm, "making an optimizer");
  const Groups& groups = trained.groups;
  std::vector<replica::Property> properties{{"optimizer", name}};
  for (std::size_t i = 0; i < groups.count(); ++i) {
    // A worker that joins takes the rates of the others, which a schedule may have changed since.
    const std::string lr = trained.model->inventory().some_bring()
                               ? "of the job"
                               : fmt::format("{}", groups.rule(i).lr());
    properties.push_back({fmt::format("options of group {}", i),
                          fmt::format("lr {} {}", lr, groups.rule(i).options())});
  }
  const auto& entries = trained.model->layout().entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry)
    properties.push_back(
        {"group of " + entries[entry].name, std::to_string(groups.group_of(entry))});
  replica::agree(comm, properties,
                 {"workers have different optimizers", "make the same one on every worker"});
}

Optimizer::Optimizer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->trained.model->inventory().add(impl_);
}
Optimizer::~Optimizer() = default;

bool Optimizer::Impl::step(std::optional<double> scale) {
  if (trained.model->hosts_shards()) {
    throw BadInput(
        "step() of an optimizer that a Step or a Trainer uses: that has updated the parameters "
        "already; leave the call out");
  }
  follow_scheduler();
  auto source = GradientSource::of(trained.model->averages(), trained.model->layout());
  source.scale = scale;
  return update->step(source);
}

void Optimizer::step() {
  impl_->step({});
}
void Optimizer::zero_grad() {
  impl_->trained.model->zero_grad();
}
double Optimizer::lr() const {
  return impl_->rates().front();
}
std::vector<double> Optimizer::rates() const {
  return impl_->rates();
}
void Optimizer::set_lr(double lr) {
  if (!std::isfinite(lr) || lr < 0)
    throw BadInput(fmt::format("the learning rate is {:g}; it must be 0 or more", lr));
  const Groups& groups = impl_->trained.groups;
  for (std::size_t i = 0; i < groups.count(); ++i)
    impl_->set_rate(i, i == 0 ? lr : lr * groups.ratio(i));
}
std::int64_t Optimizer::steps() const {
  return impl_->trained.groups.steps();
}
void Optimizer::Impl::set_extras(const Extras& extras) {
  if (extras.clip_norm > 0 && extras.clip_value > 0)
    throw BadInput("gradients are clipped by norm or by value: set the other one to 0 first");
  update->accept(extras);
  trained.extras = extras;
}
void Optimizer::set_clip_norm(double most, Norm norm) {
  if (!(most >= 0)) throw BadInput(fmt::format("clip_norm is {:g}; it must be 0 or more", most));
  Extras extras = impl_->trained.extras;
  extras.clip_norm = most;
  extras.clipped = norm;
  impl_->set_extras(extras);
}
double Optimizer::clip_norm() const {
  return impl_->trained.extras.clip_norm;
}
void Optimizer::set_clip_value(double most) {
  if (!(most >= 0)) throw BadInput(fmt::format("clip_value is {:g}; it must be 0 or more", most));
  Extras extras = impl_->trained.extras;
  extras.clip_value = most;
  impl_->set_extras(extras);
}
double Optimizer::clip_value() const {
  return impl_->trained.extras.clip_value;
}
double Optimizer::last_norm() const {
  return impl_->update->norm();
}
void Optimizer::keep_norms() {
  Extras extras = impl_->trained.extras;
  extras.keeps_norms = true;
  impl_->set_extras(extras);
}
std::vector<NamedNorm> Optimizer::last_norms() const {
  const auto& layout = impl_->trained.model->layout();
  const auto norms = impl_->update->norms();
  std::vector<NamedNorm> named(norms.size());
  for (std::size_t entry = 0; entry < norms.size(); ++entry) {
    const plan::Entry& of = layout.entries()[entry];
    named[of.registered] = {of.name, norms[entry]};
  }
  return named;
}

void Optimizer::set_ema(double decay) {
  if (!(decay > 0 && decay < 1))
    throw BadInput(
        fmt::format("the decay of an average is {:g}; it must be above 0, below 1", decay));
  Trained& trained = impl_->trained;
  if (trained.model->hosts_shards())
    throw BadInput("set_ema() in a loop: call it before the job's batches()");
  Extras extras = trained.extras;
  extras.ema_decay = decay;
  impl_->set_extras(extras);
  if (trained.state.average() != nullptr) return;
  trained.state.add_average();
  impl_->average = std::make_shared<Impl::Average>(trained.state);
  trained.model->inventory().add(impl_->average);
}
double Optimizer::ema_decay() const {
  return impl_->trained.extras.ema_decay;
}
std::vector<NamedTensor> Optimizer::ema() const {
  const Trained& trained = impl_->trained;
  if (trained.state.average() == nullptr) return {};
  std::vector<NamedTensor> named(trained.groups.entries());
  for (std::size_t entry = 0; entry < named.size(); ++entry) {
    const plan::Entry& of = trained.model->layout().entries()[entry];
    named[of.registered] = {of.name, trained.state.average_of(entry)};
  }
  return named;
}
const std::string& Optimizer::name() const {
  return impl_->name;
}

void Optimizer::set_steps(std::int64_t steps) {
  impl_->trained.groups.set_steps(steps);
  impl_->update->forget();
  impl_->trained.state.trust_masters();
}

std::vector<NamedTensor> Optimizer::Impl::tensors() {
  std::vector<NamedTensor> all = trained.state.tensors();
  const auto& entries = trained.model->layout().entries();
  auto& left_alone = trained.groups.left_alone();
  for (std::size_t entry = 0; entry < left_alone.size(); ++entry) {
    all.push_back({"left_alone/" + entries[entry].name,
                   torch::from_blob(&left_alone[entry], {1}, torch::kInt64)});
  }
  return all;
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> all = impl_->tensors();
  if (impl_->update->packs()) all.push_back({kPacked, impl_->update->pack()});
  return all;
}

namespace {

// The packed state among the given ones, which is taken out; undefined if there is none.
torch::Tensor take_packed(std::map<std::string, torch::Tensor>& given) {
  const auto found = given.find(kPacked);
  if (found == given.end()) return {};
  torch::Tensor packed = found->second;
  given.erase(found);
  return packed;
}

// Mismatch if names, shapes or dtypes differ.
void check_fit(const std::vector<NamedTensor>& mine,
               const std::map<std::string, torch::Tensor>& given) {
  for (const auto& [name, tensor] : mine) {
    const auto found = given.find(name);
    const std::string saved = found == given.end() ? "nothing" : replica::describe(found->second);
    if (saved != replica::describe(tensor)) {
      throw Mismatch(fmt::format("optimizer state {} is {}, and the saved one is {}", name,
                                 replica::describe(tensor), saved));
    }
  }
  for (const auto& [name, tensor] : given) {
    const bool known = std::any_of(mine.begin(), mine.end(),
                                   [&, &its = name](const auto& one) { return one.name == its; });
    if (known) continue;
    throw Mismatch(fmt::format(
        "the saved optimizer state has {}, and this optimizer has no such state: make it with the "
        "options of the saved one",
        name));
  }
}

}  // namespace

void Optimizer::load_state(const std::vector<NamedTensor>& state, std::int64_t steps) {
  std::map<std::string, torch::Tensor> given;
  for (const auto& [name, tensor] : state) given[name] = tensor;
  std::vector<NamedTensor> mine = impl_->tensors();
  const torch::Tensor packed = take_packed(given);
  check_fit(mine, given);
  if (packed.defined() != impl_->update->packs()) {
    throw Mismatch(fmt::format("the saved optimizer state {} that of an optim::Wrapped",
                               packed.defined() ? "is" : "is not"));
  }
  if (packed.defined()) impl_->update->unpack(packed);
  torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : mine) tensor.copy_(given[name]);
  set_steps(steps);
}

}  // namespace lockstep::optim
