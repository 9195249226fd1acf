#include "torch/replica/device_gradients.h"

#include "flat/device_update.h"
#include "torch/device/device.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {

DeviceGradients::DeviceGradients(const std::vector<NamedTensor>& parameters,
                                 const plan::Layout& layout, FlatMemory memory,
                                 std::vector<plan::Bucket> buckets, std::shared_ptr<Gather> gather)
    : FlatGradients(parameters, layout, std::move(memory)),
      buckets_(std::move(buckets)),
      gather_(std::move(gather)),
      made_(layout.entries().size()) {}

void DeviceGradients::adopt(std::size_t entry, const torch::Tensor& incoming) {
  check(entry);
  const torch::Tensor& grad = slots_.at(entry).parameter.grad();
  if (!grad.defined() || is_made(entry, grad)) return;  // backward has added to a known one
  made_[entry].tensor.emplace(grad.getIntrusivePtr());
  made_[entry].own = has_own_memory(grad, incoming);
}

bool DeviceGradients::is_made(std::size_t entry, const torch::Tensor& grad) const {
  const auto& tensor = made_[entry].tensor;
  return tensor && tensor->lock().get() == grad.unsafeGetTensorImpl();
}

// Whether a gradient can be reduced where it is. Its memory must be aligned to 16 bytes, as every
// entry is: kernels of the reduction read that much at a time.
bool DeviceGradients::stays(std::size_t entry) const {
  constexpr std::uintptr_t kPack = 16;
  const Slot& slot = slots_[entry];
  const torch::Tensor& grad = slot.parameter.grad();
  return grad.defined() && is_made(entry, grad) && made_[entry].own && !slot.hidden &&
         !slot.wide() && grad.scalar_type() == slot.type && in_the_same_order(grad, slot.view) &&
         !is_in(grad, slot.view) && reinterpret_cast<std::uintptr_t>(grad.data_ptr()) % kPack == 0;
}

void DeviceGradients::settle() {
  untangle();
  for (const plan::Bucket& bucket : buckets_) bring(bucket);
}

// If the program has a reference to a gradient now, the gradient is not own any more.
void DeviceGradients::look_again() {
  for (std::size_t entry = 0; entry < slots_.size(); ++entry) {
    const torch::Tensor& grad = slots_[entry].parameter.grad();
    if (!grad.defined() || grad.layout() != torch::kStrided) continue;
    made_[entry].own = made_[entry].own && grad.use_count() == 1 && grad.storage().use_count() == 1;
  }
}

void DeviceGradients::add(const FlatGradients& right, const std::vector<plan::Bucket>& buckets) {
  torch::NoGradGuard no_grad;
  for (const plan::Bucket& bucket : buckets)
    values(bucket).add_(static_cast<const DeviceGradients&>(right).values(bucket));
}

void DeviceGradients::take(const FlatGradients& sums) {
  torch::NoGradGuard no_grad;
  const auto& from = static_cast<const DeviceGradients&>(sums);
  for (std::size_t entry = 0; entry < slots_.size(); ++entry)
    slots_[entry].view.copy_(from.slots_[entry].view);
}

// For a gradient that the kernel cannot read, such as a sparse one.
void DeviceGradients::bring_alone(std::size_t entry) {
  Slot& slot = slots_[entry];
  const torch::Tensor& grad = slot.parameter.grad();
  if (!grad.defined() || is_in(grad, slot.view)) return;
  move_in(slot, slot.wide() ? grad.to_dense() : grad);
}

void DeviceGradients::bring(const plan::Bucket& bucket) {
  bring_all_but(bucket, std::vector<bool>(bucket.entries, false));
}

// What is gathered is 0 + g, and what stays outside is g. So a sum of nothing but -0 is -0 outside,
// and +0 in flat memory. No weight depends on it: an update adds 0 to what it reads by
// whereabouts(), and squares have no sign.
DeviceGradients::Brought DeviceGradients::bring_small(const plan::Bucket& bucket,
                                                      const std::vector<plan::Lot>& lots) {
  std::vector<bool> stay_outside(bucket.entries, false);
  for (const plan::Lot& lot : lots)
    stay_outside[lot.first_entry - bucket.first_entry] = lot.alone && stays(lot.first_entry);
  bring_all_but(bucket, stay_outside);
  Brought brought;
  void* const stream = device::current_stream(memory_.device());
  for (const plan::Lot& lot : lots) {
    const Slot& slot = slots_[lot.first_entry];
    void* data = memory_.data() + slot.entry.offset;
    if (stay_outside[lot.first_entry - bucket.first_entry]) {
      brought.outside.push_back(slot.parameter.grad());
      data = brought.outside.back().data_ptr();
    }
    brought.buffers.push_back({data, lot.count, slot.entry.dtype, memory_.device(), stream});
  }
  return brought;
}

// `stay_outside`: by entry of the bucket. The first entry says whether all are hidden, because
// clear() and hide() are always for all entries.
void DeviceGradients::bring_all_but(const plan::Bucket& bucket,
                                    const std::vector<bool>& stay_outside) {
  torch::NoGradGuard no_grad;
  const std::size_t end = bucket.first_entry + bucket.entries;
  const bool adds = slots_[bucket.first_entry].hidden;
  std::vector<const void*> readable;
  bool all_there = true;
  for (std::size_t entry = bucket.first_entry; entry < end; ++entry) {
    check(entry);
    const Slot& slot = slots_[entry];
    const torch::Tensor& grad = slot.parameter.grad();
    if (stay_outside[entry - bucket.first_entry]) {
      readable.push_back(flat::left_alone());
      continue;
    }
    const bool can_read =
        grad.defined() && grad.scalar_type() == slot.type && in_the_same_order(grad, slot.view);
    readable.push_back(can_read ? grad.data_ptr() : nullptr);
    all_there = all_there && (grad.defined() ? is_in(grad, slot.view) : adds);
  }
  if (!all_there)
    gather_->run(bucket, readable, {memory_, slots_[bucket.first_entry].entry.dtype, wide_}, adds);
  for (std::size_t entry = bucket.first_entry; entry < end; ++entry) {
    if (stay_outside[entry - bucket.first_entry]) continue;
    if (readable[entry - bucket.first_entry] == nullptr) bring_alone(entry);
    slots_[entry].attach();
  }
}

bool DeviceGradients::owns(std::size_t entry) const {
  const torch::Tensor& grad = slots_[entry].parameter.grad();
  return made_[entry].own && grad.defined() && is_made(entry, grad);
}

void DeviceGradients::set(std::size_t entry, const torch::Tensor& grad, bool own) {
  slots_[entry].parameter.mutable_grad() = grad;
  made_[entry].tensor.emplace(grad.getIntrusivePtr());
  made_[entry].own = own;
}

std::optional<std::vector<const void*>> DeviceGradients::whereabouts() const {
  std::vector<const void*> all;
  all.reserve(slots_.size());
  for (const Slot& slot : slots_) {
    const torch::Tensor& grad = slot.parameter.grad();
    if (!grad.defined() || slot.hidden || grad.scalar_type() != slot.view.scalar_type() ||
        !in_the_same_order(grad, slot.view))
      return std::nullopt;
    all.push_back(grad.data_ptr());
  }
  return all;
}

torch::Tensor DeviceGradients::values(const plan::Bucket& of) const {
  const Buffer where = bucket(of);
  const auto offset =
      static_cast<std::size_t>(static_cast<std::byte*>(where.data) - memory_.data());
  return memory_.as_tensor(scalar_type(where.dtype), offset, where.count);
}

}  // namespace lockstep::replica
