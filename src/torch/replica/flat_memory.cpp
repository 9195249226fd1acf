#include "torch/replica/flat_memory.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>

namespace lockstep::replica {

FlatMemory::FlatMemory(Comm& comm, std::size_t bytes, Copies copies, Device device)
    : device_(device), copies_(copies), rank_(comm.rank()), bytes_(bytes) {
  if (device.kind == DeviceKind::kCpu) {
    take_shared(comm);
  } else {
    take_on_device();
  }
}

// LibTorch's, as large gradients are that stay where they were made, and not the engine's arena: NCCL wants the buffers of
// one call to be registered with it on all workers, or on none.
void FlatMemory::take_on_device() {
  const std::size_t bytes = std::max<std::size_t>(bytes_, 1);
  const auto options = torch::TensorOptions().dtype(torch::kUInt8).device(torch::Device(device_));
  auto memory = std::make_shared<torch::Tensor>();
  try {
    *memory = torch::empty({static_cast<std::int64_t>(bytes)}, options);
  } catch (const c10::OutOfMemoryError&) {
    throw Unavailable(
        fmt::format("{} has no {} MB left for the model, its gradients and the "
                    "optimizer's state",
                    device_.text(), bytes / 1'000'000));
  }
  on_device_ = static_cast<std::byte*>(memory->data_ptr());
  kept_ = std::move(memory);
  clear();
}

void FlatMemory::take_shared(Comm& comm) {
  const bool has_own = copies_ == Copies::kPerWorker || comm.rank() == 0;
  arena_ = comm.share(has_own ? bytes_ : 0);
  shared_ = arena_ != nullptr;
  for (int rank = 0; shared_ && rank < comm.size(); ++rank) {
    if (arena_->size_of(copies_ == Copies::kPerHost ? 0 : rank) >= bytes_) continue;
    throw Mismatch(fmt::format("rank {} shares less memory than rank {} needs of it: workers hold "
                               "different models or options",
                               rank, comm.rank()),
                   {rank});
  }
  if (shared_) return;
  std::vector<Arena> own;
  own.push_back(Arena::create(std::max<std::size_t>(bytes_, 1)));
  arena_ = std::make_shared<SharedArena>(std::move(own), 0);
}

std::byte* FlatMemory::of(int worker) const {
  if (on_device_ != nullptr) return on_device_;
  if (!shared_) return arena_->data();
  return arena_->of(copies_ == Copies::kPerHost ? 0 : worker);
}

void FlatMemory::clear() const {
  if (on_device_ != nullptr) {
    as_tensor(torch::kUInt8, 0, bytes_).zero_();
  } else {
    std::memset(data(), 0, bytes_);
  }
}

torch::Tensor FlatMemory::as_tensor(c10::ScalarType type, std::size_t offset,
                                    std::size_t count) const {
  const auto options = torch::TensorOptions().dtype(type).device(torch::Device(device_));
  return torch::from_blob(
      data() + offset, {static_cast<std::int64_t>(count)}, [arena = arena_, kept = kept_](void*) {},
      options);
}

// One from_blob each and not slices of one tensor: a slice is a view to autograd, and a stock optimizer's zero_grad()
// cannot detach views.
torch::Tensor FlatMemory::view(const plan::Entry& entry, const torch::Tensor& like) const {
  const auto options = torch::TensorOptions().dtype(like.dtype()).device(torch::Device(device_));
  const auto keep = [arena = arena_, kept = kept_](void*) {};
  void* place = data() + entry.offset;
  if (like.is_non_overlapping_and_dense())
    return torch::from_blob(place, like.sizes(), like.strides(), keep, options);
  return torch::from_blob(place, like.sizes(), keep, options);
}

}  // namespace lockstep::replica
