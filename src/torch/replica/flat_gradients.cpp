#include "torch/replica/flat_gradients.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cstring>
#include <functional>

#include "torch/device/device.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {

namespace {

// A tensor of the memory of `own`: the one that was lent before, unless the program has changed it.
const torch::Tensor& lend(const torch::Tensor& own, torch::Tensor& lent) {
  const bool is_good = lent.defined() && is_in(lent, own) &&
                       lent.scalar_type() == own.scalar_type() && !lent.requires_grad();
  if (!is_good) lent = own.detach();
  return lent;
}

}  // namespace

FlatGradients::FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                             FlatMemory memory)
    : memory_(std::move(memory)) {
  slots_.reserve(layout.entries().size());
  for (const plan::Entry& entry : layout.entries()) {
    const torch::Tensor& parameter = parameters[entry.registered].tensor;
    Slot slot{entry, parameter, {}, parameter.scalar_type()};
    const bool wide = slot.wide();
    slot.view =
        memory_.view(entry, wide ? torch::empty_like(parameter, torch::kFloat32) : parameter);
    wide_ = wide_ || wide;
    slots_.push_back(std::move(slot));
  }
}

void FlatGradients::watch(FlatMemory parities, const plan::Pieces& pieces,
                          divergence::FirstFault& faults, int worker) {
  auto* const words = reinterpret_cast<flat::Parity*>(parities.data());
  watched_.emplace(Watched{std::move(parities),
                           {memory_.data(), memory_.bytes(), words, pieces, faults, worker}});
}

void FlatGradients::keep_averages(std::unique_ptr<HostCopy> averages) {
  averages_ = std::move(averages);
  for (Slot& slot : slots_)
    slot.average = averages_ ? averages_->seen().view(slot.entry, slot.view) : torch::Tensor();
}

void FlatGradients::attach_averages() {
  if (!averages_) return attach();
  for (Slot& slot : slots_) slot.attach_average();
}

bool FlatGradients::Slot::wide() const {
  return scalar_type(entry.dtype) != type;
}

void FlatGradients::Slot::attach() {
  if (wide()) return hide();
  parameter.mutable_grad() = lend(view, lent);
  hidden = false;
}

void FlatGradients::Slot::attach_average() {
  parameter.mutable_grad() = lend(average, lent_average);
  hidden = false;
}

void FlatGradients::Slot::hide() {
  parameter.mutable_grad() = torch::Tensor();
  hidden = true;
}

void FlatGradients::attach() {
  for (Slot& slot : slots_) slot.attach();
}

void FlatGradients::clear() {
  for (Slot& slot : slots_) {
    slot.parameter.mutable_grad() = torch::Tensor();
    slot.hidden = false;
  }
}

void FlatGradients::hide() {
  for (Slot& slot : slots_) slot.hide();
}

void FlatGradients::adopt(std::size_t entry, const torch::Tensor& /*incoming*/) {
  check(entry);
  Slot& slot = slots_.at(entry);
  if (!slot.parameter.grad().defined()) return;
  torch::NoGradGuard no_grad;
  // Made dense before it is widened: LibTorch adds duplicates inside a sparse gradient in the
  // gradient's own type.
  const torch::Tensor grad = slot.wide() ? slot.parameter.grad().to_dense() : slot.parameter.grad();
  const bool is_in_place = is_in(grad, slot.view);
  if (watched() && !is_in_place && grad.scalar_type() == slot.type &&
      in_the_same_order(grad, slot.view)) {
    watched_->watch.move_in(entry, slot.entry, grad.data_ptr(),
                            reducible_dtype(grad, slot.entry.name), slot.hidden);
  } else if (!is_in_place) {
    move_in(slot, grad);
    look_at(entry);
  } else {
    look_at(entry);  // backward has added to it where it lies
  }
  slot.attach();
}

// Writes 0 + g.
void FlatGradients::move_past_caches(const Slot& slot, const torch::Tensor& grad) {
  const DType dtype = slot.entry.dtype;
  const auto* const from = static_cast<const std::byte*>(grad.data_ptr());
  auto* const to = static_cast<std::byte*>(slot.view.data_ptr());
  const auto move = [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin) * size_of(dtype);
    flat::copy_past_caches_with_parity(dtype, from + first, to + first,
                                       static_cast<std::size_t>(end - begin));
  };
  at::parallel_for(0, grad.numel(), at::internal::GRAIN_SIZE, move);
}

void FlatGradients::move_in(Slot& slot, const torch::Tensor& grad) const {
  if (memory_.bytes() >= flat::kPastCachesBytes && !slot.hidden && !slot.wide() &&
      grad.scalar_type() == slot.type && in_the_same_order(grad, slot.view)) {
    move_past_caches(slot, grad);
  } else if (slot.hidden) {
    // Made dense first. LibTorch would add the elements of a sparse one singly: another order than
    // in a bank that has nothing yet.
    slot.view.add_(grad.layout() == torch::kStrided ? grad : grad.to_dense());
  } else if (grad.layout() == torch::kStrided) {
    // The zero is on the CPU: on a GPU a kernel would have to write it first.
    at::add_out(slot.view, grad, torch::scalar_tensor(0, grad.options().device(torch::kCPU)));
  } else {
    slot.view.zero_().add_(grad);
  }
}

void FlatGradients::add(const FlatGradients& right, const std::vector<plan::Bucket>& buckets) {
  for (std::size_t entry = 0; entry < slots_.size() && watched(); ++entry)
    watched_->watch.add(entry, slots_[entry].entry, right.watched_->watch);
  if (watched()) return;
  for (const plan::Bucket& bucket : buckets) {
    const Buffer left = this->bucket(bucket);
    flat::combine(left.dtype, ReduceOp::kSum, left.data, right.bucket(bucket).data, left.data,
                  left.count);
  }
}

void FlatGradients::take(const FlatGradients& sums) {
  for (std::size_t entry = 0; entry < slots_.size(); ++entry) {
    const plan::Entry& to = slots_[entry].entry;
    const plan::Entry& from = sums.slots_[entry].entry;
    const std::byte* const values = sums.memory_.data() + from.offset;
    if (from.dtype == to.dtype) {
      std::memcpy(memory_.data() + to.offset, values, to.bytes());
    } else {
      flat::narrow(to.dtype, reinterpret_cast<const float*>(values), memory_.data() + to.offset,
                   to.count);
    }
  }
}

void FlatGradients::look_at(std::size_t entry) {
  if (watched()) watched_->watch.look_at(entry, slots_[entry].entry);
}

// Whether a gradient is somewhere in the memory of gradients or of averages.
bool FlatGradients::is_here(const torch::Tensor& grad) const {
  if (grad.layout() != torch::kStrided) return false;
  const auto is_in_memory = [at = static_cast<const std::byte*>(grad.data_ptr())](
                                const FlatMemory& memory) {
    return !std::less<>()(at, memory.data()) && std::less<>()(at, memory.data() + memory.bytes());
  };
  return is_in_memory(memory_) || (averages_ && is_in_memory(averages_->seen()));
}

// Displaced gradients are copied, because bringing one back may overwrite another.
void FlatGradients::untangle() {
  torch::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    const torch::Tensor& grad = slot.parameter.grad();
    if (!grad.defined() || is_in(grad, slot.view)) continue;
    if (slot.average.defined() && is_in(grad, slot.average)) continue;
    if (is_here(grad)) slot.parameter.mutable_grad() = grad.clone();
  }
}

std::optional<std::vector<bool>> FlatGradients::undefined() const {
  std::vector<bool> all;
  all.reserve(slots_.size());
  for (const Slot& slot : slots_) all.push_back(!slot.hidden && !slot.parameter.grad().defined());
  return all;
}

void FlatGradients::zero(std::size_t entry) {
  torch::NoGradGuard no_grad;
  Slot& slot = slots_.at(entry);
  (averages_ ? slot.average : slot.view).zero_();
}

void FlatGradients::settle() {
  torch::NoGradGuard no_grad;
  untangle();
  for (std::size_t entry = 0; entry < slots_.size(); ++entry) {
    Slot& slot = slots_[entry];
    const torch::Tensor& grad = slot.parameter.grad();
    check(entry);
    if (grad.defined()) {
      if (!is_in(grad, slot.view)) adopt(entry);
      continue;
    }
    if (!slot.hidden) {
      slot.view.zero_();
      look_at(entry);
    }
    slot.attach();
  }
}

// The program may have replaced a gradient, or made it undefined, since the reduction.
void FlatGradients::stay(const std::vector<bool>& absent) {
  if (!averages_) return settle();
  torch::NoGradGuard no_grad;
  untangle();
  for (std::size_t entry = 0; entry < slots_.size(); ++entry) {
    Slot& slot = slots_[entry];
    const torch::Tensor& grad = slot.parameter.grad();
    check(entry);
    if (slot.hidden) {  // it is in a bank, which the update reads
      slot.attach();
    } else if (grad.defined() && !is_in(grad, slot.average)) {
      slot.average.copy_(grad.to_dense());
      slot.attach_average();
    } else if (!grad.defined() && (absent.empty() || !absent[entry])) {
      slot.average.zero_();
      slot.attach_average();
    }
  }
}

void FlatGradients::check(std::size_t entry) const {
  const Slot& slot = slots_.at(entry);
  const torch::Tensor& grad = slot.parameter.grad();
  const bool converted =
      slot.parameter.scalar_type() != slot.type || slot.parameter.device() != slot.view.device();
  if (!converted && grad.defined() && grad.sizes() != slot.view.sizes()) {
    throw BadInput(fmt::format(
        "the gradient of {} is {}, and in data_parallel() the parameter was {}: give it a gradient "
        "of that shape, and resize a module before data_parallel(), not after",
        slot.entry.name, describe(grad), describe(slot.view.to(slot.type))));
  }
  if (!converted && !(grad.defined() && grad.requires_grad())) return;
  throw BadInput(fmt::format(
      "the gradient of {} {}", slot.entry.name,
      converted
          ? "cannot be used, because the parameter has another type or device now: move or "
            "convert the module before data_parallel(), not after"
          : "is part of a graph: backward() takes no create_graph; for gradients of gradients call "
            "torch::autograd::grad() with it, and add a function of what it returns to the loss"));
}

std::int64_t FlatGradients::version(std::size_t entry) const {
  const Slot& slot = slots_[entry];
  const torch::Tensor& grad = slot.parameter.grad();
  if (!grad.defined() || slot.entry.count == 0) return -1;
  const bool is_average = slot.average.defined() && is_in(grad, slot.average);
  if (!is_average && !is_in(grad, slot.view) && !is_made(entry, grad)) return -1;
  return static_cast<std::int64_t>(grad._version());
}

std::vector<std::int64_t> FlatGradients::versions() const {
  std::vector<std::int64_t> all;
  all.reserve(slots_.size());
  for (std::size_t entry = 0; entry < slots_.size(); ++entry) all.push_back(version(entry));
  return all;
}

// The gaps between its entries are part of it.
Buffer FlatGradients::bucket(const plan::Bucket& bucket) const {
  const plan::Entry& first = slots_[bucket.first_entry].entry;
  const plan::Entry& last = slots_[bucket.first_entry + bucket.entries - 1].entry;
  const std::size_t bytes = last.offset + last.bytes() - first.offset;
  return {memory_.data() + first.offset, bytes / size_of(first.dtype), first.dtype,
          memory_.device(), device::current_stream(memory_.device())};
}

}  // namespace lockstep::replica
