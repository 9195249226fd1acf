#include "torch/step/model_step.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <mutex>

#include "base/hash.h"
#include "torch/optim/impl.h"

namespace lockstep::replica {
namespace {

struct RememberedModules {
  std::mutex mutex;
  std::vector<ModuleOf> all;
};
RememberedModules& remembered_modules() {
  static RememberedModules modules;
  return modules;
}

// What is known of a replica's module; nothing of one that is a list of tensors.
std::optional<ModuleOf> module_of(const std::shared_ptr<Replicated>& replica) {
  auto& modules = remembered_modules();
  const std::lock_guard lock(modules.mutex);
  for (const ModuleOf& known : modules.all) {
    if (known.replica.lock() == replica) return known;
  }
  return std::nullopt;
}

}  // namespace

void remember(ModuleOf module) {
  auto& modules = remembered_modules();
  const std::lock_guard lock(modules.mutex);
  std::erase_if(modules.all, [](const ModuleOf& known) { return known.replica.expired(); });
  modules.all.push_back(std::move(module));
}

}  // namespace lockstep::replica

namespace lockstep::train {

ModelView::ModelView(const Replica& model) : state_(model.state()) {}
ModelView::ModelView(optim::Optimizer& optimizer) : state_(optimizer.impl().model) {}

std::string ModelView::name() const {
  const auto known = replica::module_of(state_);
  return known ? known->name : "";
}
std::shared_ptr<torch::nn::Module> ModelView::module() const {
  const auto known = replica::module_of(state_);
  return known ? known->module.lock() : nullptr;
}
const std::vector<NamedTensor>& ModelView::parameters() const {
  return state_->model().parameters;
}
const std::vector<NamedTensor>& ModelView::buffers() const {
  return state_->model().buffers;
}
std::vector<NamedTensor> ModelView::everything() const {
  return state_->model().everything();
}
std::vector<torch::Tensor> ModelView::trained() const {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : state_->model().trained) {
    if (tensor.requires_grad()) tensors.push_back(tensor);
  }
  return tensors;
}
torch::Tensor ModelView::buffer_bytes() const {
  const auto& memory = state_->buffer_memory();
  return memory ? memory->as_tensor(torch::kUInt8, 0, memory->bytes()) : torch::Tensor();
}
Device ModelView::device() const {
  return state_->device();
}
Comm& ModelView::comm() {
  return state_->comm();
}
void ModelView::note_update() {
  state_->note_update();
}
void ModelView::keep_one_copy() {
  state_->keep_one_copy();
}
bool ModelView::identical() {
  return state_->identical();
}

namespace {

void add_rules(optim::Optimizer& optimizer, Properties& properties) {
  const optim::Optimizer::Impl& impl = optimizer.impl();
  properties["optimizer"] = optimizer.name();
  properties["optimizer_options"] = impl.rules.front()->options();
  for (std::size_t group = 1; group < impl.rules.size(); ++group) {
    std::size_t members = 0;
    base::Sha256 names;
    for (std::size_t entry = 0; entry < impl.rule_of.size(); ++entry) {
      if (impl.rule_of[entry] != group) continue;
      ++members;
      names.update(impl.model->layout().entries()[entry].name + "\n");
    }
    properties[fmt::format("optimizer_group_{}", group)] =
        fmt::format("{} lr times {} for {} parameters ({})", impl.rules[group]->options(),
                    impl.ratios[group], members, base::to_hex(names.finish()).substr(0, 8));
  }
  properties["clip_norm"] = fmt::format("{}", optimizer.clip_norm());
}

// Those that add in another order on another number of workers.
void add_algorithm(replica::Replicated& model, Properties& properties) {
  const Algorithm algorithm = model.algorithm();
  const bool bit_stable = algorithm != Algorithm::kRing && algorithm != Algorithm::kNative;
  properties["algorithm"] = bit_stable ? "bit-stable" : name(algorithm);
  if (!bit_stable) properties["workers"] = std::to_string(model.comm().size());
}

}  // namespace

Properties properties_of(optim::Optimizer& optimizer) {
  Properties properties;
  add_rules(optimizer, properties);
  add_algorithm(*optimizer.impl().model, properties);
  return properties;
}

StreamOfModels::StreamOfModels(std::vector<ModelView> models) : models_(std::move(models)) {
  stream_ = device::make_stream_scope(models_.front().device());
  if (!stream_) return;
  for (const ModelView& model : models_) model.state_->install_hooks();
}

StreamOfModels::~StreamOfModels() {
  if (!stream_) return;
  stream_.reset();
  for (const ModelView& model : models_) model.state_->install_hooks();
}

ModelStep::ModelStep(optim::Optimizer& optimizer, const Generation& generation, Options options)
    : optimizer_(optimizer),
      model_(optimizer),
      generation_(generation),
      in_one_pass_(model_.state_->reads_all_gradients() && !options.averages),
      synced_buffers_(model_.state_->syncs_buffers()) {
  replica::Replicated& model = *model_.state_;
  optim::Optimizer::Impl& impl = optimizer_.impl();
  optimizer_.zero_grad();
  make_banks();
  impl.norm_of_last_step();  // throws, if that was bad and nobody knows yet
  if (options.watches && in_one_pass_) watch_gradients();
  model.set_sharded(sharded());
  model.set_checks_each_pass(true);
  model.set_syncs_buffers(false);
  model.faults().forget();
  impl.forget_watched();
  impl.watches = options.watches;
}

ModelStep::~ModelStep() {
  replica::Replicated& model = *model_.state_;
  optimizer_.impl().watches = false;
  optimizer_.impl().resting.clear();
  model.set_divisor(std::nullopt);
  model.set_sharded(std::nullopt);
  model.set_checks_each_pass(false);
  model.set_syncs_buffers(synced_buffers_);
  model.release_banks();
}

void ModelStep::make_banks() {
  using BankHolds = replica::Replicated::BankHolds;
  const bool one_each = generation_.shards == generation_.size();
  model_.state_->make_banks(generation_.reduction.banks,
                            one_each ? BankHolds::kOneShard : BankHolds::kSums);
}

// It asks for memory that all workers share, and may end in the middle.
void ModelStep::watch_gradients() {
  try {
    model_.state_->watch_gradients();
  } catch (...) {
    model_.state_->release_banks();
    throw;
  }
}

// What the model has to know of the shards where it reduces them itself; nothing when each worker has one.
std::optional<replica::Replicated::Sharded> ModelStep::sharded() const {
  if (in_one_pass_ || generation_.shards == generation_.size()) return std::nullopt;
  const plan::Accumulation& mine = generation_.mine();
  replica::Replicated::Sharded rule{
      generation_.shards, {}, plan_partials(mine, generation_.hosted, generation_.shards)};
  for (const auto& held : mine.held) rule.held.push_back(held.bank);
  return rule;
}

void ModelStep::begin_shard(const plan::Accumulation::Step& planned) {
  replica::Replicated& model = *model_.state_;
  for (const auto& [into, from] : planned.before) model.add_banks(into, from);
  if (planned.begins) {
    model.begin_bank(planned.bank);
  } else {
    model.use_bank(planned.bank);
  }
}

void ModelStep::set_divisor(double total) {
  model_.state_->set_divisor(total);
}

void ModelStep::synchronize() {
  model_.state_->synchronize();
}

void ModelStep::finish() {
  if (in_one_pass_) return model_.state_->finish_unreduced();
  model_.state_->use_averages();
}

std::chrono::nanoseconds ModelStep::exposed() const {
  if (in_one_pass_) return {};
  return model_.state_->times().exposed();
}

std::chrono::nanoseconds ModelStep::update(double total, const kernels::Note& note) {
  replica::Replicated& model = *model_.state_;
  optim::Optimizer::Impl& impl = optimizer_.impl();
  if (in_one_pass_) {
    optimizer_.lr();  // takes what a scheduler of LibTorch's has set
    model.use_bank(0);
    impl.step(optim::GradientSource::everyones(model, generation_.reduction, total));
  } else {
    impl.note = note;
    optimizer_.step();
  }
  return impl.last_wait;
}

void ModelStep::set_rates(const std::vector<double>& rates) {
  for (std::size_t rule = 0; rule < rates.size(); ++rule)
    optimizer_.impl().set_rate(rule, rates[rule]);
}

std::vector<comm::Parity> ModelStep::seen() const {
  const optim::Optimizer::Impl& impl = optimizer_.impl();
  std::vector<comm::Parity> all = impl.applied;
  all.insert(all.end(), impl.resting.begin(), impl.resting.end());
  return all;
}

void ModelStep::collect_watched() {
  optimizer_.impl().collect_watched();
}

bool ModelStep::has_copies() const {
  return optimizer_.impl().updates_everything() && generation_.size() > 1;
}

void ModelStep::check_at_rest() {
  optimizer_.impl().check_at_rest();
}

std::string ModelStep::place_name(std::size_t place) const {
  const replica::Replicated& model = *model_.state_;
  const std::size_t pieces = optimizer_.impl().own_pieces().size();
  const plan::Stretch& where = model.pieces().all[place % pieces];
  return fmt::format("{} {} (elements {} to {})",
                     place < pieces ? "have applied different gradients to"
                                    : "hold different values, or optimizer state, of",
                     model.layout().entries()[where.entry].name, where.first,
                     where.first + where.count - 1);
}

std::optional<ModelStep::Fault> ModelStep::fault() const {
  const auto found = model_.state_->faults().get();
  if (!found) return std::nullopt;
  const std::string again =
      "Go on from the last checkpoint; if it happens again, without that machine";
  const bool of_gradient = found->what == replica::Fault::What::kGradient;
  return Fault{found->worker, found->text(model_.state_->layout()),
               of_gradient ? again
                           : again +
                                 ". A loss or a hook that writes to parameters, as max_norm and "
                                 "clamping do, looks the same: switch check_divergence off for it"};
}

void ModelStep::begin_capture() {
  model_.state_->begin_capture();
}
ModelStep::Captured ModelStep::end_capture() {
  return model_.state_->end_capture();
}
void ModelStep::cancel_capture() {
  model_.state_->cancel_capture();
}
void ModelStep::replayed(const Captured& captured) {
  model_.state_->replayed(captured);
}

}  // namespace lockstep::train
