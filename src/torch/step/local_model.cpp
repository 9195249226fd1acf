#include "torch/step/local_model.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "plan/rounds.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/synced_norms.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {
namespace {

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
  const auto& trained = model.model().trained;
  const auto wanted = rule.streaming ? static_cast<std::size_t>(rule.streaming->fragments) : 1;
  if (trained.size() < wanted)
    refuse(fmt::format("{} fragments want a parameter each, and it trains {}", wanted,
                       trained.size()));
  if (!rule.asynchronous) return;
  for (const auto& [from, steps] : rule.stages) {
    if (steps > plan::kMostTasks / shards)
      refuse(
          fmt::format("a round of {} steps has {} gradients of {} shards, and at most {} are "
                      "kept in order: give a shorter round",
                      steps, steps * shards, shards, plan::kMostTasks));
  }
  if (rule.asynchronous->backups >= shards)
    refuse(fmt::format("{} backups of {} shard{}: at least one shard counts",
                       rule.asynchronous->backups, shards, shards == 1 ? "" : "s"));
  if (model.parts().may_be_absent()) refuse("asynchronous steps want MissingGradient::kError");
  if (optim::inside(optimizer).trained.groups.layer_norm() != optim::LayerNorm::kNone)
    refuse(
        "its optimizer sets a rate for each layer by norms, which nobody measures there; take SGD, "
        "Adam, AdamW, RMSprop or Adagrad");
  if (model.parts().options.codec != nullptr)
    refuse("it has a codec, and what travels there is not encoded; leave the codec out");
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

// A world of this worker, with the patience of the other one.
World alone_beside(World& world) {
  return World::over(connect_alone({.timeout = world.comm().timeout()}), world.device());
}

// Whether a job may have workers that share no memory: now, or when another host joins.
bool may_share_nothing(World& world) {
  const std::string& engine = world.comm().engine();
  return engine != "shm" && engine != "thread";
}

}  // namespace

void refuse_to_clip_a_mean() {
  throw BadInput(
      "steps with backups cannot clip by norm where workers share no memory, because nobody has a "
      "whole mean there: clip by value, or take CPUs of one host and the engine shm");
}

std::shared_ptr<LocalModel> LocalModel::make(World& world, optim::Optimizer& given,
                                             const LocalSteps& rule, int shards) {
  check(given, rule, shards);
  const bool clips = optim::inside(given).trained.extras.clip_norm > 0;
  if (rule.asynchronous && rule.asynchronous->backups > 0 && clips && may_share_nothing(world))
    refuse_to_clip_a_mean();
  std::shared_ptr<LocalModel> local(new LocalModel(world, given, rule, shards));
  world.inventory()->add(local);
  return local;
}

// The same collectives as the outer models, their optimizers and rebind() together.
LocalModel::LocalModel(World& world, optim::Optimizer& given, const LocalSteps& rule, int shards)
    : inner_(given),
      rule_(rule),
      shards_(shards),
      alone_(alone_beside(world)),
      steps_(given.steps()) {
  for (const NamedTensor& named : inside_of(inner_).model().trained) trained_.push_back(named);
  if (rule_.state == LocalState::kReset) first_ = clones(inner_.state());
  add_fragments(world);
  take_memory();
  take_course(world);
  go_alone();
}

void LocalModel::add_fragments(World& world) {
  const std::vector<NamedTensor> parameters = outer_parameters(inside_of(inner_).model());
  std::vector<std::size_t> bytes;
  for (const auto& [name, tensor] : parameters)
    bytes.push_back(tensor.requires_grad() ? tensor.nbytes() : 0);
  const int count = rule_.streaming ? rule_.streaming->fragments : 1;
  auto from = parameters.begin();
  for (const std::size_t end : plan::fragment_ends(bytes, count)) {
    const auto to = parameters.begin() + static_cast<std::ptrdiff_t>(end);
    add_fragment(world, {from, to});
    from = to;
  }
}

// The buffers are those of the first.
void LocalModel::add_fragment(World& world, const std::vector<NamedTensor>& parameters) {
  const replica::Replicated& model = inside_of(inner_);
  std::vector<NamedTensor> all = parameters;
  std::vector<torch::Tensor> states;
  for (const auto& [name, tensor] : averaged()) {
    states.push_back(leaf_of(tensor));
    all.push_back({"state/" + name, states.back()});
  }
  DataParallelOptions options = outer_options(model.parts().options);
  if (rule_.streaming) {
    options.name = fmt::format("{}{}fragment{}", options.name, options.name.empty() ? "" : "/",
                               fragments_.size());
  }
  Replica outer(world, all, fragments_.empty() ? model.model().buffers : std::vector<NamedTensor>(),
                options);
  const optim::SGDOptions sgd{
      .lr = rule_.outer_lr, .momentum = rule_.outer_momentum, .nesterov = rule_.outer_nesterov};
  const std::vector<optim::Group<optim::SGDOptions>> groups = {
      {states, optim::SGDOptions{.lr = 1}}};
  auto optimizer = states.empty() ? std::make_shared<optim::SGD>(outer, sgd)
                                  : std::make_shared<optim::SGD>(outer, sgd, groups);
  const std::size_t first = outer_trained().size();
  fragments_.push_back({std::move(outer), std::move(optimizer), first});
}

std::vector<optim::Optimizer*> LocalModel::outers() const {
  std::vector<optim::Optimizer*> all;
  for (const Fragment& fragment : fragments_) all.push_back(fragment.outer.get());
  return all;
}

std::optional<int> LocalModel::fragment_of(const optim::Optimizer& outer) const {
  const auto found =
      std::find_if(fragments_.begin(), fragments_.end(),
                   [&](const Fragment& fragment) { return fragment.outer.get() == &outer; });
  if (found == fragments_.end()) return std::nullopt;
  return static_cast<int>(found - fragments_.begin());
}

const Replica& LocalModel::largest_fragment() const {
  const auto bytes = [](const Fragment& fragment) {
    return inside_of(*fragment.outer).layout().bytes();
  };
  return std::max_element(
             fragments_.begin(), fragments_.end(),
             [&](const Fragment& one, const Fragment& other) { return bytes(one) < bytes(other); })
      ->model;
}

std::string LocalModel::name() const {
  return inside_of(inner_).parts().options.name;
}

std::vector<NamedTensor> LocalModel::outer_trained() const {
  std::vector<NamedTensor> all;
  for (const Fragment& fragment : fragments_) {
    const auto& trained = inside_of(*fragment.outer).model().trained;
    all.insert(all.end(), trained.begin(), trained.end());
  }
  return all;
}

void LocalModel::rebind(World& world) {
  if (can_lose_state()) {
    throw BadInput(
        "shards keep state of local steps that only their workers have: the job goes to other "
        "workers by its checkpoint");
  }
  alone_ = alone_beside(world);
  take_memory();
  take_course(world);
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

std::vector<NamedTensor> LocalModel::to_keep() const {
  std::vector<NamedTensor> all = inner_.state();
  if (!rule_.streaming) return all;
  for (const auto& [name, tensor] : trained_) all.push_back({"weights/" + name, tensor.detach()});
  all.push_back({"exchanged", torch::full({1}, kAll, torch::kInt64)});
  return all;
}

namespace {

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> all;
  for (const auto& [name, tensor] : named) all.push_back(tensor);
  return all;
}

}  // namespace

void LocalModel::take_memory() {
  if (rule_.state != LocalState::kKept) return;
  const std::vector<torch::Tensor> first = tensors_of(to_keep());
  replica::Parts& parts = inside_of(*fragments_.front().outer).parts();
  const Device where = rule_.asynchronous ? Device{} : parts.device();
  if (!kept_) kept_.emplace(first, kept_states(), where);
  kept_->take_memory(parts, first, round_goes_on());
}

// What a replay has taken cannot be taken again: weights have changed meanwhile.
bool LocalModel::round_goes_on() const {
  const Course* const course = std::get_if<Course>(&round_);
  return course != nullptr && rule_.asynchronous->replay.empty() && course->is_whole(steps_);
}

// If the round goes on, the old course stays until the new one is filled.
void LocalModel::take_course(World& world) {
  if (!rule_.asynchronous) return;
  if (kept_->is_spread()) {
    Comm channel = world.open_channel();
    round_.emplace<Comm>(std::move(channel));
    return;
  }
  replica::Parts& parts = inside_of(*fragments_.front().outer).parts();
  const replica::Model& model = inside_of(inner_).model();
  Course::Shape shape{.weights = inside_of(inner_).layout().bytes(), .shards = shards_};
  for (const auto& [name, tensor] : model.buffers) shape.buffers += tensor.nbytes();
  if (rule_.asynchronous->backups > 0) shape.sum = shape.weights;
  for (const auto& [from, steps] : rule_.stages) shape.steps = std::max(shape.steps, steps);
  const Course* const before = round_goes_on() ? &course() : nullptr;
  if (before == nullptr) round_.emplace<std::monostate>();
  Course course(parts.host(), shape, {before, kept_->is_written_here()});
  round_.emplace<Course>(std::move(course));
}

std::shared_ptr<torch::nn::Module> LocalModel::module() const {
  return inside_of(inner_).attachment().module();
}

std::vector<NamedTensor> LocalModel::weights() const {
  std::vector<NamedTensor> all;
  for (const Fragment& fragment : fragments_) {
    const auto parameters = fragment.model.parameters();
    all.insert(all.end(), parameters.begin(), parameters.end());
  }
  all.resize(inside_of(inner_).model().parameters.size());
  return all;
}

// All shards begin with them, whatever they have kept.
void LocalModel::take_weights() {
  torch::NoGradGuard no_grad;
  const std::vector<NamedTensor> outer = outer_trained();
  for (int shard = 0; shard < shards_ && rule_.streaming; ++shard)
    kept_->before(shard).back().fill_(kAll);
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
  const std::vector<NamedTensor> outer = outer_trained();
  for (std::size_t i = 0; i < trained_.size(); ++i) trained_[i].tensor.copy_(outer[i].tensor);
  shown_ = versions();
}

void LocalModel::begin(int shard) {
  open_round();
  read_state(shard);
}

std::vector<torch::Tensor> LocalModel::state_before() const {
  return kept_->before(0);
}

std::vector<torch::Tensor> LocalModel::state_after() const {
  return kept_->after(0);
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
  const std::vector<NamedTensor> outer = outer_trained();
  std::size_t next = trained_.size();
  for (const auto& [name, tensor] : averaged()) {
    tensor.copy_(outer[next++].tensor);
    // A mean of squares that are nearly zero may be rounded to less.
    if (is_square(name)) tensor.clamp_min_(0);
  }
  const auto states = inner_.state();
  const auto kept = kept_ ? kept_->before(shard) : std::vector<torch::Tensor>();
  for (std::size_t i = 0; i < states.size() && kept_; ++i) states[i].tensor.copy_(kept[i]);
  if (rule_.streaming) mix(kept);
  for (std::size_t i = 0; i < first_.size(); ++i) states[i].tensor.copy_(first_[i].tensor);
  count_to(rule_.state == LocalState::kReset ? 0 : steps_);
}

// The inner optimizer goes on from there. set_steps() would forget norms that are still on their way from a GPU.
void LocalModel::count_to(std::int64_t steps) {
  optim::inside(inner_).trained.groups.set_steps(steps);
}

// The inner model has the outer weights; the shard goes on with its own, but for the fragment that was exchanged.
void LocalModel::mix(const std::vector<torch::Tensor>& kept) {
  const auto exchanged = kept.back().item<std::int64_t>();
  if (exchanged == kAll) return;
  const auto own = kept.end() - 1 - static_cast<std::ptrdiff_t>(trained_.size());
  const double keep = rule_.streaming->keep;
  for (std::size_t number = 0; number < fragments_.size(); ++number) {
    const std::size_t end =
        number + 1 < fragments_.size() ? fragments_[number + 1].first : trained_.size();
    for (std::size_t i = fragments_[number].first; i < end; ++i) {
      torch::Tensor weights = trained_[i].tensor.detach();
      const torch::Tensor& mine = own[static_cast<std::ptrdiff_t>(i)];
      const bool mixes = static_cast<std::int64_t>(number) == exchanged;
      weights.copy_(mixes ? mine * keep + weights * (1 - keep) : mine);
    }
  }
}

void LocalModel::step() {
  inner_.step();
  inner_.zero_grad();
}

void LocalModel::pass() {
  count_to(inner_.steps() + 1);
}

void LocalModel::end(int shard, int exchanged) {
  if (!kept_) return;
  const torch::NoGradGuard no_grad;
  const auto to = kept_->after(shard);
  const std::vector<torch::Tensor> from = tensors_of(to_keep());
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  if (rule_.streaming) to.back().fill_(exchanged);
}

LocalModel::Difference LocalModel::difference(int fragment) const {
  std::vector<NamedTensor> inner = trained_;
  for (const NamedTensor& named : averaged()) inner.push_back(named);
  return difference_to(fragment, tensors_of(inner));
}

LocalModel::Difference LocalModel::difference_before(int fragment, int shard) const {
  const auto kept = kept_->before(shard);
  if (kept.back().item<std::int64_t>() == kAll)  // it has the outer weights
    return difference_to(fragment, tensors_of(outer_trained()));
  return difference_to(fragment,
                       {kept.end() - 1 - static_cast<std::ptrdiff_t>(trained_.size()), kept.end()});
}

void LocalModel::announce() {
  const optim::Trained& given = optim::inside(inner_).trained;
  for (const Fragment& fragment : fragments_) {
    optim::inside(*fragment.outer).trained.also = {base::mix64(given.groups.digest_of_rates()),
                                                   base::mix64(given.extras.digest())};
  }
}

LocalModel::Difference LocalModel::difference_to(int number,
                                                 const std::vector<torch::Tensor>& weights) const {
  const torch::NoGradGuard no_grad;
  const Fragment& fragment = fragments_[static_cast<std::size_t>(number)];
  Difference all;
  std::size_t next = fragment.first;
  for (const auto& [name, tensor] : inside_of(*fragment.outer).model().trained) {
    all.tensors.push_back(tensor);
    all.gradients.push_back(tensor.detach() - weights[next++].detach());
  }
  return all;
}

void LocalModel::commit(std::int64_t steps) {
  if (kept_) kept_->commit();
  steps_ += steps;
  count_to(steps_);
  show();
}

void LocalModel::complete() {
  if (can_lose_state()) kept_->complete(inside_of(*fragments_.front().outer).comm());
}

std::vector<NamedTensor> LocalModel::state() const {
  std::vector<NamedTensor> all;
  for (const Fragment& fragment : fragments_) {
    for (const auto& [name, tensor] : fragment.outer->state())
      all.push_back({"outer/" + name, tensor});
  }
  const std::vector<NamedTensor> outer = outer_trained();
  std::size_t next = trained_.size();
  for (const NamedTensor& named : averaged())
    all.push_back({"average/" + named.name, outer[next++].tensor.detach()});
  if (!kept_) return all;
  const std::vector<NamedTensor> names = to_keep();
  for (int shard = 0; shard < kept_states(); ++shard) {
    const auto tensors = kept_->before(shard);
    const std::string whose = rule_.asynchronous ? "shared" : fmt::format("shard{}", shard);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      all.push_back({whose + "/" + names[i].name, tensors[i]});
  }
  return all;
}

void LocalModel::set_steps(std::int64_t steps) {
  steps_ = steps;
  inner_.set_steps(steps);
}

}  // namespace lockstep::steps
