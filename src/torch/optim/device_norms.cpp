#include "torch/optim/device_norms.h"

#include <lockstep/errors.h>

#include <cmath>
#include <cstring>
#include <utility>

namespace lockstep::optim {

using Row = flat::ClipMemory::Row;

DeviceNorms::DeviceNorms(const Trained& trained, const flat::TablesView& tables)
    : trained_(trained), tables_(tables), sent_(trained.model->comm().timeout()) {
  if (layer_norm() == LayerNorm::kNone) return;
  take_memory();
  take_entries();
}

void DeviceNorms::take_memory() {
  if (!memory_) memory_.emplace(trained_.model->layout().blocks());
}

void DeviceNorms::take_entries() {
  if (entries_) return;
  std::vector<flat::element::Trust> rules;
  for (std::size_t entry = 0; entry < trained_.groups.entries(); ++entry)
    rules.push_back(trained_.groups.rule_of(entry).trust(trained_.parameter(entry).dim()));
  entries_.emplace(rules);
}

void DeviceNorms::accept(const Extras& extras) {
  if (extras.clip_norm > 0 || extras.keeps_norms) take_memory();
  if (extras.keeps_norms) take_entries();
}

bool DeviceNorms::needed() const {
  return clips() || trained_.extras.keeps_norms || layer_norm() != LayerNorm::kNone;
}

bool DeviceNorms::told(std::optional<double> unscale) const {
  return clips() || trained_.extras.keeps_norms ||
         (layer_norm() == LayerNorm::kGradient && !unscale);
}

// Gradients that were scaled are measured as they are, and limited after they are unscaled.
void DeviceNorms::measure_gradients(const std::vector<flat::UpdateTask>& tasks,
                                    std::optional<double> unscale, void* stream) {
  take_memory();
  const Extras& extras = trained_.extras;
  const bool largest = clips() && extras.clipped == Norm::kLargest;
  const bool squares = !largest || extras.keeps_norms || layer_norm() == LayerNorm::kGradient;
  for (const flat::UpdateTask& task : tasks) {
    flat::MeasureTask measure{task.range, task.gradients, task.masters != nullptr,
                              memory_->row(Row::kGradients)};
    measure.limit = unscale ? 0 : extras.clip_value;
    if (squares) flat::queue_measure(measure, stream);
    measure.row = memory_->row(Row::kLargest);
    measure.measure = flat::Measure::kLargest;
    if (largest) flat::queue_measure(measure, stream);
  }
  flat::queue_clip(memory_->task(extras.clip_norm, unscale.value_or(1),
                                 largest ? Row::kLargest : Row::kGradients),
                   stream);
}

void DeviceNorms::measure_apart(const std::vector<flat::UpdateTask>& tasks, void* stream) {
  if (!apart_) apart_.emplace(trained_.model->layout().blocks());
  for (const flat::UpdateTask& task : tasks) {
    flat::queue_measure(
        {task.range, task.gradients, task.masters != nullptr, apart_->row(Row::kGradients)},
        stream);
  }
  flat::queue_clip(apart_->task(0), stream);
}

double DeviceNorms::apart() const {
  const auto options = torch::TensorOptions().dtype(torch::kFloat64);
  return torch::from_blob(const_cast<double*>(&apart_->result()->norm), {1},
                          options.device(torch::Device(trained_.model->device())))
      .item<double>();
}

void DeviceNorms::decide(std::vector<flat::UpdateTask>& tasks, std::optional<double> unscale,
                         void* stream) {
  if (!needed() && !unscale) return;
  const LayerNorm layers = layer_norm();
  const bool by_gradients = clips() || layers == LayerNorm::kGradient || unscale;
  if ((by_gradients || trained_.extras.keeps_norms) && !unscale)
    measure_gradients(tasks, unscale, stream);
  for (flat::UpdateTask& task : tasks) {
    if (clips() || unscale) task.factor = &memory_->result()->factor;
    if (by_gradients) task.skip = &memory_->result()->skip;
  }
  measure_layers(tasks, stream);
  find_by_entry(stream);
  for (flat::UpdateTask& task : tasks) {
    if (layers != LayerNorm::kNone) task.trusts = entries_->trusts();
    // If a gradient is not finite, neither is a change.
    if (layers == LayerNorm::kChange) task.skip = &memory_->result(Row::kChanges)->skip;
  }
  if (trained_.extras.keeps_norms) kept_ = unscale.value_or(1);
  if (!unscale || layers == LayerNorm::kChange) send(stream);
}

// The changes are not kept: the update computes them again.
void DeviceNorms::measure_layers(const std::vector<flat::UpdateTask>& tasks, void* stream) {
  if (layer_norm() == LayerNorm::kNone) return;
  for (const flat::UpdateTask& task : tasks)
    flat::queue_weights({task.range, task.parameters, memory_->row(Row::kWeights)}, stream);
  if (layer_norm() != LayerNorm::kChange) return;
  for (const flat::UpdateTask& task : tasks)
    flat::queue_changes({task, memory_->row(Row::kChanges)}, stream);
  flat::queue_clip(memory_->task(0, 1, Row::kChanges), stream);
}

void DeviceNorms::find_by_entry(void* stream) {
  const LayerNorm layers = layer_norm();
  const bool keeps = trained_.extras.keeps_norms;
  if (layers == LayerNorm::kNone && !keeps) return;
  const bool of_gradients = layers == LayerNorm::kGradient;
  const Row other = of_gradients ? Row::kGradients : Row::kChanges;
  const Row first = keeps || of_gradients ? Row::kGradients : Row::kWeights;
  const Row last = of_gradients                   ? Row::kWeights
                   : layers == LayerNorm::kChange ? Row::kChanges
                                                  : Row::kGradients;
  flat::queue_entry_norms(entries_->norms_task(tables_, *memory_, first, last), stream);
  if (layers == LayerNorm::kNone) return;
  flat::queue_trusts(
      entries_->trust_task(other, of_gradients ? &memory_->result()->factor : nullptr), stream);
}

void DeviceNorms::send(void* stream) {
  const bool decide = clips() || layer_norm() != LayerNorm::kNone;
  sent_.send(memory_->results(), decide, trained_.model->device(), stream, trained_.groups.steps());
}

std::span<const double> DeviceNorms::by_entry() {
  if (!kept_) return {};
  const device::CurrentDevice current(trained_.model->device());
  const auto count = static_cast<std::int64_t>(trained_.groups.entries());
  const auto options =
      torch::TensorOptions().dtype(torch::kFloat64).device(torch::Device(trained_.model->device()));
  const torch::Tensor here =
      torch::from_blob(entries_->norms(Row::kGradients), {count}, options).cpu();
  const auto* const norms = static_cast<const double*>(here.data_ptr());
  by_entry_.assign(norms, norms + count);
  for (double& norm : by_entry_) norm *= *kept_;
  return by_entry_;
}

void SentNorms::send(const flat::Clipping* results, bool decide, Device device, void* stream,
                     std::int64_t step) {
  Sent& sent = all_[next_++ % kNorms];
  const auto bytes = static_cast<std::int64_t>(sizeof(Results));
  const auto options = torch::TensorOptions().dtype(torch::kUInt8);
  if (!sent.results.defined()) sent.results = torch::empty({bytes}, options.pinned_memory(true));
  sent.results.copy_(torch::from_blob(const_cast<flat::Clipping*>(results), {bytes},
                                      options.device(torch::Device(device))),
                     /*non_blocking=*/true);
  sent.copied.record(stream);
  sent.step = step;
  sent.decide = decide;
}

void SentNorms::make_room() {
  if (Sent& next = all_[next_ % kNorms]; next.step > 0) take(next);
}

SentNorms::Results SentNorms::fetch(Sent& sent) const {
  sent.copied.wait(Deadline::after(timeout_));
  Results results;
  std::memcpy(results.data(), sent.results.data_ptr(), sizeof results);
  return results;
}

double SentNorms::take(Sent& sent) {
  const auto [gradients, changes] = fetch(sent);
  const std::int64_t step = std::exchange(sent.step, 0);
  const double norm = std::isfinite(gradients.norm) ? changes.norm : gradients.norm;
  if (sent.decide && !std::isfinite(norm)) throw BadInput(diverged(norm, step - 1));
  return gradients.norm;
}

double SentNorms::newest() {
  Sent& sent = all_[(next_ + kNorms - 1) % kNorms];
  last_ = fetch(sent)[0].norm;
  sent.step = 0;
  return last_;
}

double SentNorms::last() {
  for (std::size_t i = 0; i < kNorms; ++i) {  // from the oldest on
    Sent& sent = all_[(next_ + i) % kNorms];
    if (sent.step > 0) last_ = take(sent);
  }
  return last_;
}

void SentNorms::forget() {
  for (Sent& sent : all_) sent.step = 0;
}

}  // namespace lockstep::optim
