#include "torch/replica/flat_memory.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>

namespace lockstep::replica {

FlatMemory::FlatMemory(Comm& comm, std::size_t bytes, Copies copies)
    : copies_(copies), rank_(comm.rank()), bytes_(bytes) {
  const bool has_own = copies == Copies::kPerWorker || comm.rank() == 0;
  arena_ = comm.share(has_own ? bytes_ : 0);
  shared_ = arena_ != nullptr;
  for (int rank = 0; shared_ && rank < comm.size(); ++rank) {
    if (arena_->size_of(copies == Copies::kPerHost ? 0 : rank) >= bytes_) continue;
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
  if (!shared_) return arena_->data();
  return arena_->of(copies_ == Copies::kPerHost ? 0 : worker);
}

void FlatMemory::clear() const {
  std::memset(data(), 0, bytes_);
}

// One from_blob each and not slices of one tensor: a slice is a view to autograd, and a stock optimizer's zero_grad()
// cannot detach views.
torch::Tensor FlatMemory::view(const plan::Entry& entry, const torch::Tensor& like) const {
  const auto options = torch::TensorOptions().dtype(like.dtype());
  const auto keep = [arena = arena_](void*) {};
  void* place = data() + entry.offset;
  if (like.is_non_overlapping_and_dense())
    return torch::from_blob(place, like.sizes(), like.strides(), keep, options);
  return torch::from_blob(place, like.sizes(), keep, options);
}

}  // namespace lockstep::replica
