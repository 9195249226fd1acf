#include "torch/replica/flat_memory.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/take_pages.h"
#include "base/written_pages.h"
#include "comm/group.h"
#include "torch/device/device.h"

namespace lockstep::replica {

FlatMemory::FlatMemory(Comm& comm, std::size_t bytes, Copies copies, Device device)
    : device_(device), rank_(comm.rank()), bytes_(bytes) {
  if (const torch::Tensor own = device::memory(device, bytes); own.defined()) {
    starts_ = {static_cast<std::byte*>(own.data_ptr())};
    kept_ = std::make_shared<torch::Tensor>(own);
  } else {
    take_from_host(comm, copies, nullptr);
  }
}

FlatMemory FlatMemory::again(Comm& comm, const FlatMemory& before) {
  if (!before.shared_) return {comm, before.bytes_, Copies::kReduced, before.device_};
  FlatMemory memory;
  memory.rank_ = comm.rank();
  memory.bytes_ = before.bytes_;
  memory.take_from_host(comm, Copies::kReduced, &before);
  return memory;
}

void FlatMemory::take_from_host(Comm& comm, Copies copies, const FlatMemory* before) {
  const bool one_copy = copies == Copies::kPerHost || copies == Copies::kPerHostSeen;
  const auto arena =
      before != nullptr
          ? comm::Inside::share_again(comm, static_cast<SharedArena*>(before->kept_.get())->own())
          : comm.share(!one_copy || comm.rank() == 0 ? bytes_ : 0,
                       copies == Copies::kPerHostSeen ? Comm::Mappings::kAlsoPrivate
                                                      : Comm::Mappings::kShared);
  shared_ = arena != nullptr;
  if (!shared_) return take_own(copies == Copies::kReduced ? comm.share_on_host(bytes_) : nullptr);
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int owner = one_copy ? 0 : rank;
    if (arena->size_of(owner) < bytes_) {
      throw Mismatch(
          fmt::format(
              "rank {} shares less memory than rank {} needs: workers hold different models "
              "or options",
              owner, comm.rank()),
          {owner});
    }
    starts_.push_back(arena->of(owner));
  }
  private_ = arena->private_of(0);
  kept_ = arena;
  take_pages(comm, one_copy);
}

// A page lies on the NUMA node of the worker that takes it first, which should be the one that
// will own it. Slices are about equal parts. After a loss others wait for these pages, and workers
// that have died have left cores idle.
void FlatMemory::take_pages(Comm& comm, bool one_copy) const {
  const std::size_t page = base::page_bytes();
  const std::size_t pages = (bytes_ + page - 1) / page;
  const auto workers = static_cast<std::size_t>(one_copy ? comm.size() : 1);
  const auto mine = static_cast<std::size_t>(one_copy ? comm.rank() : 0);
  const std::size_t begin = pages * mine / workers * page;
  const std::size_t end = std::min(pages * (mine + 1) / workers * page, bytes_);
  constexpr std::size_t kWorthAThread = 4 << 20;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = end - begin < kWorthAThread ? 1 : std::clamp(cores / comm.size(), 1, 4);
  base::take_pages({data() + begin, end - begin}, threads);
  if (workers > 1) comm.barrier().wait();
}

void FlatMemory::take_own(const std::shared_ptr<SharedArena>& of_host) {
  on_host_ = of_host != nullptr;
  if (on_host_) {
    starts_ = {of_host->data()};
    kept_ = of_host;
    return;
  }
  const auto own = std::make_shared<Arena>(Arena::create(std::max<std::size_t>(bytes_, 1)));
  starts_ = {own->data()};
  kept_ = own;
}

void FlatMemory::leave_behind(const Comm& comm, Use use) const {
  if (!shared_) return;
  comm::Inside::enter(comm, static_cast<std::uint8_t>(use),
                      std::static_pointer_cast<SharedArena>(kept_));
}

FlatMemory FlatMemory::privately() const {
  LOCKSTEP_CHECK(private_ != nullptr, "a memory that was made with kPerHostSeen");
  FlatMemory view;
  view.device_ = device_;
  view.bytes_ = bytes_;
  view.kept_ = kept_;
  view.starts_ = {private_};
  return view;
}

torch::Tensor FlatMemory::as_tensor(c10::ScalarType type, std::size_t offset,
                                    std::size_t count) const {
  const auto options = torch::TensorOptions().dtype(type).device(torch::Device(device_));
  return torch::from_blob(
      data() + offset, {static_cast<std::int64_t>(count)}, [kept = kept_](void*) {}, options);
}

// A from_blob for each entry, and no slices of one tensor. For autograd a slice is a view, and
// zero_grad() of a torch::optim optimizer cannot detach views.
torch::Tensor FlatMemory::view(const plan::Entry& entry, const torch::Tensor& like) const {
  const auto options = torch::TensorOptions().dtype(like.dtype()).device(torch::Device(device_));
  const auto keep = [kept = kept_](void*) {};
  void* const first = data() + entry.offset;
  if (like.is_non_overlapping_and_dense())
    return torch::from_blob(first, like.sizes(), like.strides(), keep, options);
  return torch::from_blob(first, like.sizes(), keep, options);
}

}  // namespace lockstep::replica
