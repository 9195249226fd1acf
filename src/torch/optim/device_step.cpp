#include "torch/optim/device_step.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "torch/device/small_table.h"
#include "torch/kernels/device_tables.h"
#include "torch/replica/device_gradients.h"

namespace lockstep::optim {
namespace {

// Steps whose norms may be on their way to the host at a time.
constexpr std::size_t kNorms = 4;

// The norm of a step, as it comes back.
struct Norm {
  torch::Tensor clipping;  // pinned
  device::Event copied;
  std::int64_t step = 0;  // 0: none on its way
};

// The parities that the updates of every other step have seen, by piece: three rows, of what was found, what was left and
// which gradients were applied. Words are XORed, so they are zero before.
struct Watch {
  torch::Tensor words;
  torch::Tensor on_host;  // pinned
  device::Event seen;     // by the update
  device::Event copied;   // and the words are zero again
  std::int64_t step = 0;  // 0: nobody wants to know them
};

class QueuedStep : public DeviceStep {
 public:
  explicit QueuedStep(Optimizer::Impl& optimizer)
      : optimizer_(optimizer),
        model_(*optimizer.model),
        tables_(model_.layout(), model_.pieces(), rules_of(optimizer),
                kernels::ChunkTables::Order::kType),
        on_device_(tables_),
        numbers_(model_.device()),
        pointers_(model_.device()) {}

  void begin() override;
  void update(const kernels::Note& note) override;
  void prepare_clipping() override;
  void collect() override;
  void forget() override;
  double norm() override;

 private:
  // Where entries count steps of their own, each has numbers of its own.
  static std::vector<std::uint16_t> rules_of(const Optimizer::Impl& optimizer) {
    std::vector<std::uint16_t> rules(optimizer.rule_of.begin(), optimizer.rule_of.end());
    if (!optimizer.left_alone.empty()) std::iota(rules.begin(), rules.end(), 0);
    return rules;
  }
  std::vector<std::byte> numbers_of_step() const;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies_of_absent() const;
  kernels::DeviceGradients gradients(DType dtype) const;
  kernels::DeviceRange range(const kernels::ChunkTables::Typed& typed) const {
    return {on_device_.view(), typed.chunks, typed.dtype};
  }
  float* masters_of(const kernels::ChunkTables::Typed& typed) const;
  static kernels::WatchedWords words_of(const Watch& watch);
  Watch& next_watch();
  void fetch(Watch& watch);
  void collect(Watch& watch);
  void find_gradients();
  void clip(void* stream);
  void send_norm(void* stream);
  double take(Norm& norm);

  Optimizer::Impl& optimizer_;
  replica::Replicated& model_;
  kernels::ChunkTables tables_;
  kernels::DeviceTables on_device_;
  device::SmallTable numbers_;   // of the step, by rule, if they are many
  device::SmallTable pointers_;  // to gradients, by entry
  std::optional<kernels::ClipMemory> clipping_;
  std::array<Watch, 2> watches_;  // of even and odd steps
  std::optional<device::SideStream> side_;
  std::array<Norm, kNorms> norms_;
  std::size_t next_norm_ = 0;
  double last_ = 0;
};

// Where backward has made them, unless that was in an order of its own.
void QueuedStep::find_gradients() {
  auto& gradients = static_cast<replica::DeviceGradients&>(model_.banks().in_use());
  auto where = gradients.whereabouts();
  if (!where) {
    gradients.settle();
    where = gradients.whereabouts();
  }
  LOCKSTEP_CHECK(where.has_value(), "gradients that were brought are in their places");
  pointers_.set(*where);
}

kernels::DeviceGradients QueuedStep::gradients(DType dtype) const {
  return {dtype, nullptr, static_cast<const void* const*>(pointers_.data())};
}

float* QueuedStep::masters_of(const kernels::ChunkTables::Typed& typed) const {
  const bool half = typed.dtype == DType::kFloat16 || typed.dtype == DType::kBFloat16;
  if (!half || !optimizer_.masters()) return nullptr;
  return reinterpret_cast<float*>(optimizer_.masters()->data());
}

void QueuedStep::update(const kernels::Note& note) {
  void* const stream = device::current_stream(model_.device());
  find_gradients();
  const std::vector<std::byte> numbers = numbers_of_step();
  const bool few = numbers.size() <= sizeof(kernels::UpdateTask::few);
  if (!few) numbers_.set(numbers);
  optimizer_.refresh_masters();
  if (optimizer_.clip_norm > 0) clip(stream);
  const auto kept = copies_of_absent();
  if (!kept.empty()) optimizer_.forget_watched();
  Watch* const watch = optimizer_.watches && kept.empty() ? &next_watch() : nullptr;
  const auto types = tables_.by_type();
  for (const auto& typed : types) {
    kernels::UpdateTask task;
    task.range = range(typed);
    task.rule = optimizer_.rules.front()->device_rule();
    if (few) {
      std::copy(numbers.begin(), numbers.end(), task.few);
    } else {
      task.numbers = numbers_.data();
    }
    task.parameters = model_.parameters().data();
    task.masters = masters_of(typed);
    const std::size_t states = optimizer_.memories.size() - (optimizer_.masters() ? 1 : 0);
    for (std::size_t i = 0; i < states; ++i) task.states[i] = optimizer_.memories[i].data();
    task.wide_states = optimizer_.masters() != nullptr;
    task.gradients = gradients(typed.dtype);
    if (optimizer_.clip_norm > 0) {
      task.factor = clipping_->factor();
      task.skip = clipping_->skip();
    }
    if (watch != nullptr) task.watched = words_of(*watch);
    if (&typed == &types.front()) task.note = note;
    kernels::queue_update(task, stream);
  }
  for (const auto& [place, values] : kept) place.copy_(values);
  if (watch == nullptr) return;
  watch->seen.record(stream);
  watch->step = optimizer_.steps;
}

std::vector<std::byte> QueuedStep::numbers_of_step() const {
  std::vector<std::byte> numbers;
  const auto add = [&](const Rule& rule, std::int64_t step) {
    const auto of = rule.numbers(step);
    numbers.insert(numbers.end(), of.begin(), of.end());
  };
  if (optimizer_.left_alone.empty()) {
    for (const auto& rule : optimizer_.rules) add(*rule, optimizer_.steps);
    return numbers;
  }
  for (std::size_t entry = 0; entry < optimizer_.rule_of.size(); ++entry)
    add(*optimizer_.rules[optimizer_.rule_of[entry]], optimizer_.steps_of(entry));
  return numbers;
}

// The update goes over everything. What no worker has a gradient for is put back after it: that is rare.
std::vector<std::pair<torch::Tensor, torch::Tensor>> QueuedStep::copies_of_absent() const {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  const auto keep = [&](const torch::Tensor& place) { copies.emplace_back(place, place.clone()); };
  for (std::size_t entry = 0; entry < optimizer_.rule_of.size(); ++entry) {
    if (!optimizer_.leaves_alone(entry)) continue;
    const std::size_t registered = model_.layout().entries()[entry].registered;
    keep(model_.model().trained[registered].tensor.detach());
    for (std::size_t i = 0; i < optimizer_.memories.size(); ++i)
      keep(optimizer_.state_view(i, entry));
  }
  return copies;
}

kernels::WatchedWords QueuedStep::words_of(const Watch& watch) {
  auto* const words = static_cast<unsigned long long*>(watch.words.data_ptr());
  const auto pieces = watch.words.size(1);
  return {words, words + pieces, words + 2 * pieces};
}

Watch& QueuedStep::next_watch() {
  Watch& watch = watches_[static_cast<std::size_t>(optimizer_.steps % 2)];
  if (!watch.words.defined()) {
    const auto pieces = static_cast<std::int64_t>(model_.pieces().all.size());
    const auto options = torch::TensorOptions().dtype(torch::kInt64);
    watch.words = torch::zeros({3, pieces}, options.device(torch::Device(model_.device())));
    watch.on_host = torch::empty({3, pieces}, options.pinned_memory(true));
    if (!side_) side_.emplace(model_.device());
  }
  return watch;
}

// Beside what was queued since, when the update has been: a stream that waits for another slows that one down.
void QueuedStep::fetch(Watch& watch) {
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
  if (optimizer_.clip_norm == 0) norm();  // of steps before it was switched off
  if (Norm& next = norms_[next_norm_ % kNorms]; next.step > 0) take(next);
  collect(watches_[static_cast<std::size_t>((optimizer_.steps + 1) % 2)]);
}

void QueuedStep::prepare_clipping() {
  const device::CurrentDevice current(model_.device());
  if (!clipping_) clipping_.emplace(model_.layout().blocks());
}

void QueuedStep::forget() {
  for (Watch& watch : watches_) {
    if (std::exchange(watch.step, 0) == 0) continue;
    watch.copied.precede(device::current_stream(model_.device()));  // a copy that was given up
    watch.words.zero_();
  }
  for (Norm& norm : norms_) norm.step = 0;
}

void QueuedStep::collect() {
  norm();
  collect(watches_[static_cast<std::size_t>((optimizer_.steps + 1) % 2)]);
  collect(watches_[static_cast<std::size_t>(optimizer_.steps % 2)]);
}

void QueuedStep::collect(Watch& watch) {
  if (watch.step == 0) return;
  fetch(watch);
  watch.step = 0;
  const auto pieces = static_cast<std::size_t>(watch.on_host.size(1));
  const auto* const before = static_cast<const comm::Parity*>(watch.on_host.data_ptr());
  optimizer_.note_watched({before, pieces}, {before + pieces, pieces},
                          {before + 2 * pieces, pieces});
}

void QueuedStep::clip(void* stream) {
  for (const auto& typed : tables_.by_type()) {
    kernels::queue_squares(
        {range(typed), gradients(typed.dtype), masters_of(typed) != nullptr, clipping_->squares()},
        stream);
  }
  kernels::queue_clip(clipping_->task(optimizer_.clip_norm), stream);
  send_norm(stream);
}

void QueuedStep::send_norm(void* stream) {
  Norm& norm = norms_[next_norm_++ % kNorms];
  const auto bytes = static_cast<std::int64_t>(sizeof(kernels::Clipping));
  const auto options = torch::TensorOptions().dtype(torch::kUInt8);
  if (!norm.clipping.defined()) norm.clipping = torch::empty({bytes}, options.pinned_memory(true));
  auto* const result = const_cast<kernels::Clipping*>(clipping_->result());
  norm.clipping.copy_(
      torch::from_blob(result, {bytes}, options.device(torch::Device(model_.device()))),
      /*non_blocking=*/true);
  norm.copied.record(stream);
  norm.step = optimizer_.steps;
}

double QueuedStep::take(Norm& norm) {
  norm.copied.wait(Deadline::after(model_.comm().timeout()));
  kernels::Clipping result;
  std::memcpy(&result, norm.clipping.data_ptr(), sizeof result);
  const std::int64_t step = std::exchange(norm.step, 0);
  if (std::isfinite(result.norm)) return result.norm;
  throw BadInput(Optimizer::Impl::diverged(result.norm, step - 1));
}

double QueuedStep::norm() {
  if (next_norm_ == 0) return 0;
  for (std::size_t i = 0; i < kNorms; ++i) {  // from the oldest on
    Norm& norm = norms_[(next_norm_ + i) % kNorms];
    if (norm.step > 0) last_ = take(norm);
  }
  return last_;
}

}  // namespace

std::unique_ptr<DeviceStep> make_device_step(Optimizer::Impl& optimizer) {
  return std::make_unique<QueuedStep>(optimizer);
}

}  // namespace lockstep::optim
