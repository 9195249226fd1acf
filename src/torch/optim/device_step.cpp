// The update on a GPU: queued, with one kernel for all parameters of a type.
//
// A step does not wait until the GPU has done it. The host takes its norms some steps later, and its
// parities in the step after next, unless somebody asks earlier. Two kinds of steps wait, in
// prepare(): with a scale, because the host must know whether its gradients have overflowed; and
// those of a wrapped optimizer that clips. Norms that decide the update (clipping, LARS, LAMB) are
// measured before it, and stay on the GPU (device_norms.h).
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "flat/device_tables.h"
#include "torch/device/upload.h"
#include "torch/optim/device_norms.h"
#include "torch/optim/update.h"
#include "torch/replica/device_gradients.h"

namespace lockstep::optim {
namespace {

// The parities that the update of one step has seen. Three rows of words, by piece: what it found,
// what it left, and the gradients that it applied. Kernels XOR into the words, so these are zero
// before.
struct SeenParities {
  torch::Tensor words;
  torch::Tensor on_host;  // pinned
  device::Event seen;     // the update is done
  device::Event copied;   // words are on the host, and zero again
  std::int64_t step = 0;  // 0: nothing to fetch
};

// Every worker updates everything, on its own GPU.
class QueuedStep : public Update {
 public:
  explicit QueuedStep(Trained& trained)
      : Update(trained, {0, trained.model->pieces().all.size()}),
        model_(*trained.model),
        tables_(model_.layout(), model_.pieces(), rules_of(trained.groups),
                flat::ChunkTables::Order::kType),
        device_tables_(tables_),
        numbers_(model_.device()),
        pointers_(model_.device()),
        norms_(trained, device_tables_.view()) {}

  void prepare(const GradientSource& source) override;
  void apply(UpdateJournal* journal) override;
  void skip(UpdateJournal* journal) override;
  void finish(const UpdateNumbers& numbers, UpdateJournal& journal) override;
  bool overflowed() const override { return scaled_ && scaled_->overflowed; }
  void accept(const Extras& extras) override;
  std::span<const double> norms() override {
    return overflowed() ? std::span<const double>{} : norms_.by_entry();
  }
  double measured_norm() const override { return unscale().value_or(1) * norms_.apart(); }
  void take_along(const flat::Note& note) override { note_ = note; }
  bool has_copies() const override { return true; }
  void collect() override;
  void forget() override;
  double norm() override;

 protected:
  void find_gradients();
  std::vector<flat::UpdateTask> tasks() const;
  void copy_note();
  std::optional<double> unscale() const {
    return scaled_ ? std::optional(scaled_->unscale) : std::nullopt;
  }

  replica::Replicated& model_;
  DeviceNorms& block_norms() { return norms_; }

 private:
  // Which numbers each entry uses: those of its group. If gradients may be absent, each entry
  // counts its own steps, and so has numbers of its own.
  static std::vector<std::uint16_t> rules_of(const Groups& groups) {
    std::vector<std::uint16_t> rules;
    for (std::size_t entry = 0; entry < groups.entries(); ++entry) {
      rules.push_back(
          static_cast<std::uint16_t>(groups.left_alone().empty() ? groups.group_of(entry) : entry));
    }
    return rules;
  }
  void begin();
  void measure_for_noise();
  virtual void update();
  void queue_update();
  void queue_nothing();
  std::vector<std::byte> numbers_of_step() const;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies_of_absent() const;
  float* masters_of(const flat::ChunkTables::Typed& typed) const;
  static flat::WatchedWords words_of(const SeenParities& watch);
  SeenParities& next_watch();
  void fetch(SeenParities& watch);
  void collect(SeenParities& watch);
  void forget_parities() override;
  void look_for_overflow(double scale);

  // Of a step whose losses were scaled.
  struct Scaled {
    double unscale = 1;
    bool overflowed = false;
  };

  flat::ChunkTables tables_;
  flat::DeviceTables device_tables_;
  device::SmallTable numbers_;   // of the step, if they are too many for arguments of a kernel
  device::SmallTable pointers_;  // to gradients, by entry
  std::array<SeenParities, 2> watches_;  // two, for even and odd steps: one is fetched, one written
  std::optional<device::SideStream> side_;
  DeviceNorms norms_;
  flat::Note note_;
  Said said_;
  std::optional<Scaled> scaled_;
  bool queued_ = false;  // the update of this step, or that there is none
};

void QueuedStep::prepare(const GradientSource& source) {
  torch::NoGradGuard no_grad;
  said_ = say_step(trained_, source);
  if (said_.cannot) std::rethrow_exception(said_.cannot);
  waited_ = {};
  queued_ = false;
  const device::CurrentDevice current(model_.device());
  heed_loads();
  begin();
  scaled_.reset();
  if (source.scale) look_for_overflow(*source.scale);
  if (source.measured) measure_for_noise();
}

void QueuedStep::measure_for_noise() {
  check_measured(trained_);
  find_gradients();
  norms_.measure_apart(tasks(), device::current_stream(model_.device()));
}

// The kernel of the norm also finds out whether a gradient is not finite. All GPUs have the same
// averages, so all workers find the same.
void QueuedStep::look_for_overflow(double scale) {
  check_scaled(trained_);
  find_gradients();
  norms_.last();  // takes those from before there was a scale
  scaled_ = Scaled{static_cast<float>(1 / scale)};
  void* const stream = device::current_stream(model_.device());
  norms_.measure_gradients(tasks(), unscale(), stream);
  norms_.send(stream);
  scaled_->overflowed = !std::isfinite(norms_.newest());
}

// Where no kernel of ours takes the note along. It goes to pinned memory, so nobody waits.
void QueuedStep::copy_note() {
  const flat::Note note = std::exchange(note_, {});
  if (note.bytes == 0) return;
  const auto bytes = static_cast<std::int64_t>(note.bytes);
  const auto options = torch::TensorOptions().dtype(torch::kUInt8);
  const torch::Tensor from = torch::from_blob(const_cast<void*>(note.from), {bytes},
                                              options.device(torch::Device(model_.device())));
  torch::from_blob(note.to, {bytes}, options.pinned_memory(true))
      .copy_(from, /*non_blocking=*/true);
}

void QueuedStep::skip(UpdateJournal*) {
  queue_nothing();
  waited_ += hear_step(trained_, std::exchange(said_, {}));
}

void QueuedStep::apply(UpdateJournal*) {
  queue_update();
  waited_ += hear_step(trained_, std::exchange(said_, {}));
}

// All gradients are on this GPU, so nobody else is needed.
void QueuedStep::finish(const UpdateNumbers& numbers, UpdateJournal&) {
  if (!queued_) numbers.skipped ? queue_nothing() : queue_update();
}

void QueuedStep::queue_nothing() {
  torch::NoGradGuard no_grad;
  const device::CurrentDevice current(model_.device());
  copy_note();
  model_.banks().hide_absent();
  queued_ = true;
}

void QueuedStep::queue_update() {
  torch::NoGradGuard no_grad;
  const device::CurrentDevice current(model_.device());
  trained_.groups.count_step(trained_.absent());
  update();
  model_.banks().hide_absent();
  bump_versions();
  trained_.state.trust_masters();
  queued_ = true;
}

// Reads gradients where backward made them. If a kernel cannot, all go to flat memory first.
void QueuedStep::find_gradients() {
  auto& gradients = static_cast<replica::DeviceGradients&>(model_.banks().in_use());
  auto where = gradients.whereabouts();
  if (!where) {
    gradients.settle();
    where = gradients.whereabouts();
  }
  LOCKSTEP_CHECK(where.has_value(), "settled gradients are in flat memory");
  pointers_.set(*where);
}

float* QueuedStep::masters_of(const flat::ChunkTables::Typed& typed) const {
  const bool half = typed.dtype == DType::kFloat16 || typed.dtype == DType::kBFloat16;
  if (!half || trained_.state.masters() == nullptr) return nullptr;
  return reinterpret_cast<float*>(trained_.state.masters()->data());
}

// Of all types: everything but the numbers of the step.
std::vector<flat::UpdateTask> QueuedStep::tasks() const {
  std::vector<flat::UpdateTask> all;
  const StateMemory& state = trained_.state;
  for (const auto& typed : tables_.by_type()) {
    flat::UpdateTask& task = all.emplace_back();
    task.range = {device_tables_.view(), typed.chunks, typed.dtype};
    task.rule = trained_.groups.rule(0).device_rule();
    task.parameters = model_.parameters().data();
    task.masters = masters_of(typed);
    for (std::size_t i = 0; i < state.count(); ++i)
      task.states[state.state_of(i)] = state.memories()[i].data();
    task.wide_states = state.masters() != nullptr;
    task.gradients = {typed.dtype, nullptr, static_cast<const void* const*>(pointers_.data())};
    task.limit = trained_.extras.clip_value;
    if (state.average() != nullptr) task.average = state.average()->data();
    task.fresh = 1 - trained_.extras.ema_decay;
  }
  return all;
}

void QueuedStep::update() {
  const flat::Note note = std::exchange(note_, {});
  void* const stream = device::current_stream(model_.device());
  find_gradients();
  const std::vector<std::byte> numbers = numbers_of_step();
  const bool few = numbers.size() <= sizeof(flat::UpdateTask::few);
  if (!few) numbers_.set(numbers);
  trained_.state.refresh_masters();
  const auto kept = copies_of_absent();
  if (!kept.empty()) forget_parities();
  SeenParities* const watch = watch_.on() && kept.empty() ? &next_watch() : nullptr;
  auto all = tasks();
  for (flat::UpdateTask& task : all) {
    if (few) {
      std::copy(numbers.begin(), numbers.end(), task.few);
    } else {
      task.numbers = numbers_.data();
    }
    if (watch != nullptr) task.watched = words_of(*watch);
  }
  if (!all.empty()) all.front().note = note;
  norms_.decide(all, unscale(), stream);
  for (const flat::UpdateTask& task : all) flat::queue_update(task, stream);
  for (const auto& [place, values] : kept) place.copy_(values);
  if (watch == nullptr) return;
  watch->seen.record(stream);
  watch->step = trained_.groups.steps();
}

std::vector<std::byte> QueuedStep::numbers_of_step() const {
  std::vector<std::byte> numbers;
  const auto add = [&](const Rule& rule, std::int64_t step) {
    const auto of = rule.numbers(step);
    numbers.insert(numbers.end(), of.begin(), of.end());
  };
  const Groups& groups = trained_.groups;
  if (groups.left_alone().empty()) {
    for (std::size_t i = 0; i < groups.count(); ++i) add(groups.rule(i), groups.steps());
    return numbers;
  }
  for (std::size_t entry = 0; entry < groups.entries(); ++entry)
    add(groups.rule_of(entry), groups.steps_of(entry));
  return numbers;
}

// The kernel updates everything. Parameters and state with absent gradients are saved before and
// put back after it. That is slow, but rare.
std::vector<std::pair<torch::Tensor, torch::Tensor>> QueuedStep::copies_of_absent() const {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  const auto keep = [&](const torch::Tensor& place) { copies.emplace_back(place, place.clone()); };
  for (std::size_t entry = 0; entry < trained_.groups.entries(); ++entry) {
    if (!trained_.leaves_alone(entry)) continue;
    keep(trained_.parameter(entry).detach());
    for (std::size_t i = 0; i < trained_.state.memories().size(); ++i)
      keep(trained_.state.view(i, entry));
  }
  return copies;
}

flat::WatchedWords QueuedStep::words_of(const SeenParities& watch) {
  auto* const words = static_cast<unsigned long long*>(watch.words.data_ptr());
  const auto pieces = watch.words.size(1);
  return {words, words + pieces, words + 2 * pieces};
}

SeenParities& QueuedStep::next_watch() {
  SeenParities& watch = watches_[static_cast<std::size_t>(trained_.groups.steps() % 2)];
  if (!watch.words.defined()) {
    const auto pieces = static_cast<std::int64_t>(model_.pieces().all.size());
    const auto options = torch::TensorOptions().dtype(torch::kInt64);
    watch.words = torch::zeros({3, pieces}, options.device(torch::Device(model_.device())));
    watch.on_host = torch::empty({3, pieces}, options.pinned_memory(true));
    if (!side_) side_.emplace(model_.device());
  }
  return watch;
}

// Copies on a side stream, so as not to wait for what was queued since. The host waits for the
// update first: if the side stream did, it would slow down the other one.
void QueuedStep::fetch(SeenParities& watch) {
  const Deadline deadline = Deadline::after(model_.comm().timeout());
  watch.seen.wait(deadline);
  {
    const device::SideStream::Scope scope(*side_, device::SideStream::After::kGoesOn);
    watch.on_host.copy_(watch.words, /*non_blocking=*/true);
    watch.words.zero_();
    watch.copied.record(device::current_stream(model_.device()));
  }
  watch.copied.wait(deadline);
}

void QueuedStep::begin() {
  if (!norms_.needed()) norms_.last();  // takes those from before clipping was switched off
  norms_.make_room();
  collect(watches_[static_cast<std::size_t>((trained_.groups.steps() + 1) % 2)]);
}

double QueuedStep::norm() {
  if (overflowed()) return 0;
  const double last = norms_.last();
  return norms_.told(unscale()) ? last : 0;
}

void QueuedStep::accept(const Extras& extras) {
  const device::CurrentDevice current(model_.device());
  norms_.accept(extras);
}

void QueuedStep::forget() {
  forget_parities();
  norms_.forget();
}

void QueuedStep::forget_parities() {
  Update::forget_parities();
  for (SeenParities& watch : watches_) {
    if (std::exchange(watch.step, 0) == 0) continue;
    watch.copied.precede(device::current_stream(model_.device()));  // a fetch may have timed out
    watch.words.zero_();
  }
}

void QueuedStep::collect() {
  norms_.last();
  collect(watches_[static_cast<std::size_t>((trained_.groups.steps() + 1) % 2)]);
  collect(watches_[static_cast<std::size_t>(trained_.groups.steps() % 2)]);
}

void QueuedStep::collect(SeenParities& watch) {
  if (watch.step == 0) return;
  fetch(watch);
  watch.step = 0;
  const auto pieces = static_cast<std::size_t>(watch.on_host.size(1));
  const auto* const before = static_cast<const flat::Parity*>(watch.on_host.data_ptr());
  watch_.saw_all({before, pieces}, {before + pieces, pieces}, {before + 2 * pieces, pieces});
}

// The program's optimizer reads averages in param.grad, unscaled and clipped there. The host waits
// for their norm. Parities of what a program writes are not taken here: that would read all weights
// once more.
class WrappedStep : public QueuedStep {
 public:
  WrappedStep(Trained& trained, std::shared_ptr<WrappedOptimizer> optimizer)
      : QueuedStep(trained), optimizer_(std::move(optimizer)) {}
  void prepare(const GradientSource& source) override;
  void accept(const Extras& extras) override;
  bool has_copies() const override { return false; }
  bool reads_grad() const override { return true; }
  bool packs() const override { return true; }
  torch::Tensor pack() const override { return optimizer_->pack(); }
  void unpack(const torch::Tensor& bytes) override { optimizer_->unpack(bytes); }

 private:
  void update() override;

  std::shared_ptr<WrappedOptimizer> optimizer_;
  double factor_ = 1;  // of gradients: 1 / scale, and that of clipping
};

void WrappedStep::accept(const Extras& extras) {
  check_wrapped(extras);
  QueuedStep::accept(extras);
}

void WrappedStep::prepare(const GradientSource& source) {
  QueuedStep::prepare(source);
  if (overflowed()) return;
  torch::NoGradGuard no_grad;
  const device::CurrentDevice current(model_.device());
  find_gradients();
  auto all = tasks();
  block_norms().decide(all, unscale(), device::current_stream(model_.device()));
  factor_ = unscale().value_or(1);
  if (trained_.extras.clip_norm <= 0) return;
  const double norm = unscale() ? block_norms().newest() : block_norms().last();
  factor_ *= std::min(trained_.extras.clip_norm / (norm + 1e-6), 1.0);
}

// Gradients are multiplied in flat memory: two parameters may share one that lies elsewhere.
void WrappedStep::update() {
  copy_note();
  const double limit = trained_.extras.clip_value;
  if (factor_ != 1 || limit > 0) model_.banks().in_use().settle();
  model_.banks().hide_absent();
  for (std::size_t entry = 0; entry < trained_.groups.entries(); ++entry) {
    const torch::Tensor& gradient = trained_.parameter(entry).grad();
    if (!gradient.defined()) continue;
    if (factor_ != 1) gradient.mul_(factor_);
    if (limit > 0) gradient.clamp_(-limit, limit);
  }
  optimizer_->step(trained_.groups.steps() - 1);
  model_.check_attached();  // it may have given parameters other memory
}

}  // namespace

std::unique_ptr<Update> make_wrapped_on_device(Trained& trained,
                                               const std::shared_ptr<WrappedOptimizer>& optimizer) {
  return std::make_unique<WrappedStep>(trained, optimizer);
}

std::unique_ptr<Update> make_device_step(Trained& trained) {
  return std::make_unique<QueuedStep>(trained);
}

}  // namespace lockstep::optim
