#include "torch/step/local_model.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "plan/tree.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/synced_norms.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned_bytes(const torch::Tensor& tensor) {
  return (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
}

replica::Replicated& inside_of(const optim::Optimizer& optimizer) {
  return *optim::inside(optimizer).trained.model;
}

void check(const optim::Optimizer& optimizer, const LocalSteps& rule, int shards) {
  replica::Replicated& model = inside_of(optimizer);
  const auto refuse = [&](const std::string& why) {
    throw BadInput(fmt::format("{} cannot take {} steps: {}", model.attachment().name(),
                               rule.asynchronous ? "asynchronous" : "local", why));
  };
  if (dynamic_cast<const optim::Wrapped*>(&optimizer) != nullptr)
    refuse("its optimizer is wrapped, and nobody can name its state; take one of lockstep::optim");
  if (optimizer.ema_decay() > 0)
    refuse("its optimizer keeps an average (set_ema), which would be that of one shard");
  for (const auto& [name, tensor] : model.model().trained) {
    if (tensor.scalar_type() == torch::kFloat32 || tensor.scalar_type() == torch::kFloat64)
      continue;
    refuse(fmt::format("{} is {}, and an exchange wants float32 or float64", name,
                       replica::describe(tensor)));
  }
  if (!replica::describe_synced_norms(model.model().everything()).empty())
    refuse(
        "it has a SyncBatchNorm, which meets the other shards in every step; leave BatchNorm as it "
        "is");
  if (rule.state == LocalState::kAveraged && model.parts().may_be_absent())
    refuse("averaged state wants MissingGradient::kError");
  if (!rule.asynchronous) return;
  if (rule.asynchronous->backups >= shards)
    refuse(fmt::format("{} backups of {} shard{}: at least one shard counts",
                       rule.asynchronous->backups, shards, shards == 1 ? "" : "s"));
  if (model.parts().may_be_absent()) refuse("asynchronous steps want MissingGradient::kError");
  if (optim::inside(optimizer).trained.groups.layer_norm() != optim::LayerNorm::kNone)
    refuse(
        "its optimizer sets a rate for each layer by norms, which nobody measures there; take SGD, "
        "Adam, AdamW, RMSprop or Adagrad");
  if (model.parts().options.codec != nullptr)
    refuse("it has a codec, and where workers share weights nothing travels; leave the codec out");
}

// A leaf of the outer model, with these values.
torch::Tensor leaf_of(const torch::Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(true);
}

// Of the program's model: what is trained by copies of its own, the rest shared.
std::vector<NamedTensor> outer_parameters(const replica::Model& model) {
  std::vector<NamedTensor> all;
  for (const auto& [name, tensor] : model.parameters)
    all.push_back({name, tensor.requires_grad() ? leaf_of(tensor) : tensor});
  return all;
}

DataParallelOptions outer_options(const DataParallelOptions& inner) {
  DataParallelOptions options = inner;
  options.missing_gradient = MissingGradient::kError;
  return options;
}

// Whether a state is never below 0.
bool is_square(const std::string& name) {
  return name.starts_with("square/") || name.starts_with("max_square/") || name.starts_with("sum/");
}

std::vector<NamedTensor> clones(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> all;
  for (const auto& [name, tensor] : tensors) all.push_back({name, tensor.clone()});
  return all;
}

}  // namespace

std::shared_ptr<LocalModel> LocalModel::make(World& world, optim::Optimizer& given,
                                             const LocalSteps& rule, int shards) {
  check(given, rule, shards);
  std::shared_ptr<LocalModel> local(new LocalModel(world, given, rule, shards));
  world.inventory()->add(local);
  return local;
}

// The same collectives as the outer model, its optimizer and rebind() together.
LocalModel::LocalModel(World& world, optim::Optimizer& given, const LocalSteps& rule, int shards)
    : inner_(given),
      rule_(rule),
      shards_(shards),
      alone_(World::over(connect_alone(), world.device())),
      steps_(given.steps()) {
  const replica::Replicated& model = inside_of(inner_);
  std::vector<NamedTensor> parameters = outer_parameters(model.model());
  std::vector<torch::Tensor> states;
  for (const auto& [name, tensor] : averaged()) {
    states.push_back(leaf_of(tensor));
    parameters.push_back({"state/" + name, states.back()});
  }
  for (const NamedTensor& named : model.model().trained) trained_.push_back(named);
  if (rule_.state == LocalState::kReset) first_ = clones(inner_.state());
  shared_.emplace(world, parameters, model.model().buffers, outer_options(model.parts().options));
  optim::SGDOptions options{
      .lr = rule_.outer_lr, .momentum = rule_.outer_momentum, .nesterov = rule_.outer_nesterov};
  if (states.empty()) {
    outer_ = std::make_shared<optim::SGD>(*shared_, options);
  } else {
    const std::vector<optim::Group<optim::SGDOptions>> groups = {
        {states, optim::SGDOptions{.lr = 1}}};
    outer_ = std::make_shared<optim::SGD>(*shared_, options, groups);
  }
  take_memory();
  take_course();
  go_alone();
}

void LocalModel::rebind(World& world) {
  if (can_lose_state()) {
    throw BadInput(
        "shards keep state of local steps that only their workers have: the job goes to other "
        "workers by its checkpoint");
  }
  alone_ = World::over(connect_alone(), world.device());
  take_memory();
  take_course();
  go_alone();
  inner_.set_steps(steps_);  // a shard may have been in the middle of its round
}

void LocalModel::go_alone() {
  inside_of(inner_).train_alone(alone_);
  optim::inside(inner_).rebind(alone_);
}

std::vector<NamedTensor> LocalModel::averaged() const {
  std::vector<NamedTensor> all;
  if (rule_.state != LocalState::kAveraged) return all;
  for (const NamedTensor& named : inner_.state())
    if (named.tensor.is_floating_point()) all.push_back(named);
  return all;
}

// Where workers share memory, one of them fills it: with what it has, or at first with the state that the program's optimizer
// has. The others keep the memory of before until it has: if it is lost meanwhile, they have the values.
void LocalModel::take_memory() {
  if (rule_.state != LocalState::kKept) return;
  replica::Parts& parts = inside_of(*outer_).parts();
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : inner_.state()) bytes += aligned_bytes(tensor);
  const std::size_t half = bytes * static_cast<std::size_t>(kept_states());
  const replica::FlatMemory memory(parts.host(), 2 * half + kAlignment, replica::Copies::kPerHost,
                                   parts.device());
  if (!memory.shared() || parts.host().rank() == parts.source_on_host()) {
    torch::NoGradGuard no_grad;
    if (kept_) {
      memory.as_tensor(torch::kUInt8, 0, half)
          .copy_(kept_->memory.as_tensor(torch::kUInt8,
                                         static_cast<std::size_t>(kept_->current) * half, half));
    }
    const auto states = inner_.state();
    for (int shard = 0; shard < kept_states() && !kept_; ++shard) {
      const auto to = state_in(memory, 0, shard);
      for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(states[i].tensor);
    }
  }
  parts.comm.barrier().wait();
  const bool all_here = memory.shared() && parts.host().size() == parts.comm.size();
  kept_ = {memory, !all_here && parts.comm.size() > 1, 0};
}

void LocalModel::take_course() {
  if (!rule_.asynchronous) return;
  replica::Parts& parts = inside_of(*outer_).parts();
  const replica::Model& model = inside_of(inner_).model();
  Course::Shape shape{.weights = inside_of(inner_).layout().bytes(), .shards = shards_};
  for (const auto& [name, tensor] : model.buffers) shape.buffers += tensor.nbytes();
  if (rule_.asynchronous->backups > 0) shape.sum = shape.weights;
  for (const auto& [from, steps] : rule_.stages) shape.steps = std::max(shape.steps, steps);
  course_.emplace(parts.host(), shape);
  if (kept_->spread || !course_->shared() || parts.host().size() != parts.comm.size()) {
    throw BadInput(
        "asynchronous steps are for workers that share memory so far: CPUs of one host, with the "
        "engine shm");
  }
}

// In the order of Optimizer::state().
std::vector<torch::Tensor> LocalModel::state_in(const replica::FlatMemory& memory, int which,
                                                int shard) const {
  std::vector<torch::Tensor> all;
  const auto states = inner_.state();
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : states) bytes += aligned_bytes(tensor);
  std::size_t at = bytes * static_cast<std::size_t>(which * kept_states() + shard);
  for (const auto& [name, tensor] : states) {
    all.push_back(
        memory.as_tensor(tensor.scalar_type(), at, static_cast<std::size_t>(tensor.numel()))
            .as_strided(tensor.sizes(), tensor.strides()));
    at += aligned_bytes(tensor);
  }
  return all;
}

std::shared_ptr<torch::nn::Module> LocalModel::module() const {
  return inside_of(inner_).attachment().module();
}

std::vector<NamedTensor> LocalModel::weights() const {
  std::vector<NamedTensor> all = shared_->parameters();
  all.resize(inside_of(inner_).model().parameters.size());
  return all;
}

void LocalModel::take_weights() {
  torch::NoGradGuard no_grad;
  const auto& outer = inside_of(*outer_).model().trained;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (torch::equal(outer[i].tensor, trained_[i].tensor)) continue;
    outer[i].tensor.detach().copy_(trained_[i].tensor);
  }
}

bool LocalModel::was_written() const {
  return shown_ >= 0 && shown_ != versions();
}

std::int64_t LocalModel::versions() const {
  std::int64_t sum = 0;
  for (const NamedTensor& named : trained_) sum += named.tensor._version();
  return sum;
}

void LocalModel::show() {
  torch::NoGradGuard no_grad;
  const auto& outer = inside_of(*outer_).model().trained;
  for (std::size_t i = 0; i < trained_.size(); ++i) trained_[i].tensor.copy_(outer[i].tensor);
  shown_ = versions();
}

void LocalModel::begin(int shard) {
  open_round();
  read_state(shard);
}

std::vector<torch::Tensor> LocalModel::state_before() const {
  return state_in(kept_->memory, kept_->current, 0);
}

std::vector<torch::Tensor> LocalModel::state_after() const {
  return state_in(kept_->memory, 1 - kept_->current, 0);
}

void LocalModel::open_round() {
  if (was_written()) {
    throw BadInput(
        fmt::format("something else than the job has written to {} between two rounds of local "
                    "steps: load before batches()",
                    inside_of(inner_).attachment().name()));
  }
  if (shown_ >= 0 && inner_.steps() != steps_) {
    throw BadInput(
        "set_steps() or load_state() of the optimizer between two rounds of local steps: shards "
        "have "
        "states of their own; load before the Step is made");
  }
  show();
  shown_ = -1;
}

void LocalModel::read_state(int shard) {
  torch::NoGradGuard no_grad;
  const auto& outer = inside_of(*outer_).model().trained;
  std::size_t next = trained_.size();
  for (const auto& [name, tensor] : averaged()) {
    tensor.copy_(outer[next++].tensor);
    // A mean of squares that are nearly zero may be rounded to less.
    if (is_square(name)) tensor.clamp_min_(0);
  }
  const auto states = inner_.state();
  const auto from =
      kept_ ? state_in(kept_->memory, kept_->current, shard) : std::vector<torch::Tensor>();
  for (std::size_t i = 0; i < from.size(); ++i) states[i].tensor.copy_(from[i]);
  for (std::size_t i = 0; i < first_.size(); ++i) states[i].tensor.copy_(first_[i].tensor);
  inner_.set_steps(rule_.state == LocalState::kReset ? 0 : steps_);
}

void LocalModel::step() {
  inner_.step();
  inner_.zero_grad();
}

void LocalModel::pass() {
  inner_.set_steps(inner_.steps() + 1);
}

void LocalModel::end(int shard) {
  if (kept_) write_to(1 - kept_->current, shard);
}

void LocalModel::write_to(int which, int shard) const {
  torch::NoGradGuard no_grad;
  const auto to = state_in(kept_->memory, which, shard);
  const auto states = inner_.state();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(states[i].tensor);
}

// With it goes what the programs have set: they must have done the same on every worker.
LocalModel::Difference LocalModel::difference() const {
  torch::NoGradGuard no_grad;
  const optim::Trained& given = optim::inside(inner_).trained;
  optim::inside(*outer_).trained.also = {base::mix64(given.groups.digest_of_rates()),
                                         base::mix64(given.extras.digest())};
  Difference all;
  std::vector<NamedTensor> inner = trained_;
  for (const NamedTensor& named : averaged()) inner.push_back(named);
  const auto& outer = inside_of(*outer_).model().trained;
  for (std::size_t i = 0; i < outer.size(); ++i) {
    all.tensors.push_back(outer[i].tensor);
    all.gradients.push_back(outer[i].tensor.detach() - inner[i].tensor.detach());
  }
  return all;
}

void LocalModel::commit(std::int64_t steps) {
  if (kept_) kept_->current = 1 - kept_->current;
  set_steps(steps_ + steps);
  show();
}

void LocalModel::complete() {
  if (!can_lose_state()) return;
  Comm& comm = inside_of(*outer_).comm();
  for (int worker = 0; worker < comm.size(); ++worker) {
    const plan::ShardRange hosted = plan::hosted_shards(worker, comm.size(), shards_);
    for (int shard = hosted.begin; shard < hosted.end; ++shard) {
      std::vector<NamedTensor> tensors;
      for (const torch::Tensor& tensor : state_in(kept_->memory, kept_->current, shard))
        tensors.push_back({"", tensor});
      replica::copy_from(comm, worker, tensors);
    }
  }
}

std::vector<NamedTensor> LocalModel::state() const {
  std::vector<NamedTensor> all;
  for (const auto& [name, tensor] : outer_->state()) all.push_back({"outer/" + name, tensor});
  const auto& outer = inside_of(*outer_).model().trained;
  std::size_t next = trained_.size();
  for (const NamedTensor& named : averaged())
    all.push_back({"average/" + named.name, outer[next++].tensor.detach()});
  if (!kept_) return all;
  const auto states = inner_.state();
  for (int shard = 0; shard < kept_states(); ++shard) {
    const auto tensors = state_in(kept_->memory, kept_->current, shard);
    const std::string whose = rule_.asynchronous ? "shared" : fmt::format("shard{}", shard);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      all.push_back({whose + "/" + states[i].name, tensors[i]});
  }
  return all;
}

void LocalModel::set_steps(std::int64_t steps) {
  steps_ = steps;
  inner_.set_steps(steps);
}

}  // namespace lockstep::steps
