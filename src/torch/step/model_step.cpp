#include "torch/step/model_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "control/faults.h"

namespace lockstep::steps {

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
void ModelView::prepare(int shards) {
  share_values();
  if (const auto& encoding = state_->parts().encoding) encoding->take_memory(comm(), shards);
}
const Codec* ModelView::codec() const {
  return state_->parts().options.codec.get();
}
bool ModelView::keeps_codec_state() const {
  return codec() != nullptr && codec()->has_error_feedback();
}
void ModelView::complete_codec() {
  if (const auto& encoding = state_->parts().encoding)
    encoding->complete(comm(), state_->parts().plan.buckets);
}
std::function<std::vector<NamedTensor>()> ModelView::codec_state() const {
  return [state = state_] { return state->parts().encoding->state(); };
}
bool has_others(const std::vector<ModelView>& models) {
  std::vector<const replica::Attachment*> known;
  known.reserve(models.size());
  for (const ModelView& model : models) known.push_back(&model.state_->attachment());
  return replica::others_are_hooked(known);
}

namespace {

void add_rules(const optim::Optimizer& optimizer, Properties& properties) {
  const optim::Trained& trained = optim::inside(optimizer).trained;
  const optim::Groups& groups = trained.groups;
  properties["optimizer"] = optimizer.name();
  properties["optimizer_options"] = groups.rule(0).options();
  for (std::size_t group = 1; group < groups.count(); ++group) {
    std::size_t members = 0;
    base::Sha256 names;
    for (std::size_t entry = 0; entry < groups.entries(); ++entry) {
      if (groups.group_of(entry) != group) continue;
      ++members;
      names.update(trained.model->layout().entries()[entry].name + "\n");
    }
    properties[fmt::format("optimizer_group_{}", group)] =
        fmt::format("{} lr times {} for {} parameters ({})", groups.rule(group).options(),
                    groups.ratio(group), members, base::to_hex(names.finish()).substr(0, 8));
  }
  properties["clip_norm"] =
      fmt::format("{}{}", optimizer.clip_norm(),
                  trained.extras.clipped == optim::Norm::kLargest ? " of the largest" : "");
  // Named only where they are used, so that jobs of before go on from their checkpoints.
  if (optimizer.clip_value() > 0)
    properties["clip_value"] = fmt::format("{}", optimizer.clip_value());
  if (optimizer.ema_decay() > 0) properties["ema"] = fmt::format("{}", optimizer.ema_decay());
}

// An algorithm that is not bit-stable adds in another order on another number of workers: that number is then part of
// the job.
void add_algorithm(replica::Replicated& model, Properties& properties) {
  const Algorithm algorithm = model.parts().options.algorithm;
  const bool bit_stable = algorithm != Algorithm::kRing && algorithm != Algorithm::kNative;
  properties["algorithm"] = bit_stable ? "bit-stable" : name(algorithm);
  if (const auto& codec = model.parts().options.codec) properties["codec"] = codec->name();
  if (!bit_stable) properties["workers"] = std::to_string(model.comm().size());
}

}  // namespace

Properties properties_of(const optim::Optimizer& optimizer, const ModelView& model) {
  Properties properties;
  add_rules(optimizer, properties);
  add_algorithm(*model.state_, properties);
  return properties;
}

StreamOfModels::StreamOfModels(std::vector<ModelView> models) : models_(std::move(models)) {
  stream_ = device::make_stream_scope(models_.front().device());
  if (!stream_) return;
  for (const ModelView& model : models_) model.state_->attachment().install_hooks();
}

StreamOfModels::~StreamOfModels() {
  if (!stream_) return;
  stream_.reset();
  for (const ModelView& model : models_) model.state_->attachment().install_hooks();
}

namespace {

// A fault on purpose: one bit of a parameter, or of what belongs to it.
void flip_bit(const optim::StateMemory& state, replica::Replicated& model, std::string_view where,
              std::uint64_t random) {
  const auto& states = state.memories();
  const bool in_state = where == "state" && !states.empty();
  const plan::Layout& layout = in_state ? state.layout() : model.layout();
  const replica::FlatMemory& memory = in_state               ? states[random % states.size()]
                                      : where == "gradients" ? model.banks().at(0).memory()
                                                             : model.parameters();
  const plan::Entry& entry = layout.entries()[random / 64 % layout.entries().size()];
  const std::size_t byte = entry.offset + random / 4096 % entry.bytes();
  if (byte < memory.bytes())
    memory.as_tensor(torch::kUInt8, byte, 1).bitwise_xor_(1 << (random / 8 % 8));
}

}  // namespace

ModelStep::ModelStep(optim::Optimizer& optimizer, const Generation& generation, Options options)
    : optimizer_(optimizer), parts_(optim::inside(optimizer)), model_(optimizer) {
  optimizer_.zero_grad();
  parts_.update->norm();  // throws if the norm of a step before the loop was not finite
  const Averages averages = parts_.update->reads_grad() ? Averages::kInGrad : options.averages;
  gradients_ = make_gradients(*model_.state_, generation, averages, options.with_parity);
  model_.state_->faults().forget();
  parts_.update->forget();
  parts_.update->watch().switch_on(options.with_parity);
  if (control::Faults& faults = control::Faults::here(); !faults.none()) {
    faults.set_flip([this](std::string_view where, std::uint64_t random) {
      flip_bit(parts_.trained.state, *model_.state_, where, random);
    });
  }
}

ModelStep::~ModelStep() {
  control::Faults::here().set_flip(nullptr);
  parts_.update->watch().switch_on(false);
}

void ModelStep::prepare(const optim::GradientSource& source) {
  parts_.follow_scheduler();
  parts_.update->prepare(source);
}

void ModelStep::apply(const flat::Note& note, optim::UpdateJournal* journal) {
  parts_.update->take_along(note);
  parts_.update->apply(journal);
}

void ModelStep::skip(const flat::Note& note, optim::UpdateJournal* journal) {
  parts_.update->take_along(note);
  parts_.update->skip(journal);
}

void ModelStep::set_rates(const std::vector<double>& rates) {
  for (std::size_t rule = 0; rule < rates.size(); ++rule) parts_.set_rate(rule, rates[rule]);
}

std::unique_ptr<replica::MeasuredPass> ModelStep::measure() {
  replica::Replicated& model = *model_.state_;
  return replica::make_measured_pass(model.parts(), model.attachment(), model.shards());
}

std::vector<flat::Parity> ModelStep::seen() {
  collect_with_parity();
  const divergence::UpdateWatch& watch = parts_.update->watch();
  const std::size_t pieces = model_.state_->pieces().all.size();
  std::vector<flat::Parity> all(2 * pieces);
  const auto put = [&](const std::vector<flat::Parity>& own, std::size_t at) {
    std::copy(own.begin(), own.end(),
              all.begin() + static_cast<std::ptrdiff_t>(at + watch.own().begin));
  };
  put(watch.applied(), 0);
  put(watch.resting(), pieces);
  return all;
}

std::vector<int> ModelStep::copies() const {
  replica::Replicated& model = *model_.state_;
  if (!parts_.update->has_copies() || model.comm().size() == 1) return {};
  if (model.parts().neighbours) return model.comm().hosts();
  std::vector<int> one_each(static_cast<std::size_t>(model.comm().size()));
  std::iota(one_each.begin(), one_each.end(), 0);
  return one_each;
}

std::string ModelStep::item_name(std::size_t item) const {
  const replica::Replicated& model = *model_.state_;
  const std::size_t pieces = model.pieces().all.size();
  const plan::Stretch& where = model.pieces().all[item % pieces];
  return fmt::format("{} {} (elements {} to {})",
                     item < pieces ? "have applied different gradients to"
                                   : "hold different values, or optimizer state, of",
                     model.layout().entries()[where.entry].name, where.first,
                     where.first + where.count - 1);
}

std::optional<ModelStep::Found> ModelStep::fault() const {
  const auto fault = model_.state_->faults().get();
  if (!fault) return std::nullopt;
  return Found{fault->worker, fault->text(model_.state_->layout()), fault->remedy()};
}

std::unique_ptr<replica::CapturePass> ModelStep::capture() {
  replica::Replicated& model = *model_.state_;
  return std::make_unique<replica::CapturePass>(model.parts(), model.attachment(), model.shards());
}

void ModelStep::replayed(const replica::ShardPass::Captured& captured) {
  model_.state_->shards().replayed(captured);
}

}  // namespace lockstep::steps
