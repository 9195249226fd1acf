#include "torch/optim/state_memory.h"

#include <utility>

#include "torch/device/device.h"
#include "torch/replica/tensors.h"

namespace lockstep::optim {
namespace {

// For a copy of all bytes. LibTorch copies words faster, and a layout has whole ones.
torch::Tensor words_of(const replica::FlatMemory& memory) {
  return memory.as_tensor(torch::kInt64, 0, memory.bytes() / sizeof(std::int64_t));
}

}  // namespace

StateMemory::StateMemory(replica::Parts& model, const StateNames& names)
    : model_(model),
      has_masters_(replica::layout_of_sums(model.plan.layout).has_value()),
      layout_(has_masters_ ? *replica::layout_of_sums(model.plan.layout) : model.plan.layout) {
  for (std::size_t state = 0; state < names.size(); ++state) {
    if (names[state] == nullptr) continue;
    names_.emplace_back(names[state]);
    states_.push_back(state);
  }
  if (has_masters_) {
    names_.emplace_back("master");
    versions_.assign(layout_.entries().size(), -1);
  }
  take_memories();
  model_.comm.barrier().wait();  // as rebind()
}

void StateMemory::take_memory() {
  memories_.emplace_back(model_.host(), layout_.bytes(), replica::Copies::kPerHost,
                         model_.device());
  memories_.back().leave_behind(model_.host(), replica::FlatMemory::Use::kState);
}

void StateMemory::take_memories() {
  for (std::size_t i = 0; i < names_.size(); ++i) take_memory();
}

void StateMemory::add_average() {
  const CallName call(model_.comm, "set_ema()");
  take_memory();
  names_.emplace_back("ema");
  has_average_ = true;
  const replica::FlatMemory& average = memories_.back();
  if (!average.shared() || model_.host().rank() == 0) {
    torch::NoGradGuard no_grad;
    const device::CurrentDevice current(model_.device());
    if (has_masters_) {
      refresh_masters();
    } else {
      words_of(average).copy_(words_of(model_.parameters->seen()));
    }
    for (std::size_t entry = 0; entry < layout_.entries().size() && has_masters_; ++entry)
      average_of(entry).copy_(has_master(entry) ? view(count(), entry) : model_.parameter(entry));
  }
  model_.comm.barrier().wait();  // nobody reads it, or writes to weights, before it is there
}

// If workers share the memory, one of them fills it. The others keep the memories of before until it has: if it is lost
// meanwhile, they have the values.
void StateMemory::rebind() {
  auto before = std::exchange(memories_, {});
  const std::size_t count = names_.size() - (has_average_ ? 1 : 0);
  try {
    for (std::size_t i = 0; i < count; ++i) take_memory();
    for (std::size_t i = 0; i < count; ++i) fill(memories_[i], before[i]);
    model_.comm.barrier().wait();
    if (has_average_) memories_.push_back(before.back());
  } catch (...) {
    memories_ = std::move(before);
    throw;
  }
}

// The same collectives as add_average().
void StateMemory::rebind_average() {
  const CallName call(model_.comm, "set_ema()");
  take_memory();
  try {
    fill(memories_.back(), memories_[memories_.size() - 2]);
    model_.comm.barrier().wait();
  } catch (...) {
    memories_.pop_back();
    throw;
  }
  memories_.erase(memories_.end() - 2);
}

void StateMemory::fill(const replica::FlatMemory& memory, const replica::FlatMemory& before) {
  if (memory.shared() && model_.host().rank() != model_.source_on_host()) return;
  words_of(memory).copy_(words_of(before));
}

bool StateMemory::has_master(std::size_t entry) const {
  return has_masters_ &&
         layout_.entries()[entry].dtype != model_.plan.layout.entries()[entry].dtype;
}

void StateMemory::refresh_masters() {
  for (std::size_t entry = 0; entry < versions_.size(); ++entry) {
    const torch::Tensor& parameter = model_.parameter(entry);
    if (!has_master(entry) || parameter._version() == versions_[entry]) continue;
    const torch::Tensor master = view(count(), entry);
    const torch::Tensor now = parameter.detach();
    const torch::Tensor kept = master.to(now.scalar_type()) == now;
    master.copy_(torch::where(kept, master, now.to(master.scalar_type())));
  }
}

void StateMemory::trust_masters() {
  for (std::size_t entry = 0; entry < versions_.size(); ++entry)
    versions_[entry] = static_cast<std::int64_t>(model_.parameter(entry)._version());
}

torch::Tensor StateMemory::view(std::size_t memory, std::size_t entry) const {
  const torch::Tensor& parameter = model_.parameter(entry);
  const plan::Entry& at = layout_.entries()[entry];
  if (!has_masters_) return memories_[memory].view(at, parameter);
  const auto wide = replica::scalar_type(at.dtype);
  return memories_[memory].view(at, torch::empty_like(parameter, wide));
}

std::vector<NamedTensor> StateMemory::tensors() {
  if (has_masters_) {  // no step may have read them yet
    torch::NoGradGuard no_grad;
    const device::CurrentDevice current(model_.device());
    refresh_masters();
  }
  std::vector<NamedTensor> all;
  for (std::size_t memory = 0; memory < names_.size(); ++memory) {
    const bool masters = this->masters() == &memories_[memory];
    for (std::size_t entry = 0; entry < layout_.entries().size(); ++entry) {
      if (masters && !has_master(entry)) continue;
      all.push_back({names_[memory] + "/" + layout_.entries()[entry].name, view(memory, entry)});
    }
  }
  return all;
}

}  // namespace lockstep::optim
