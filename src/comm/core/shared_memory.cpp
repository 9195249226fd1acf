#include "comm/core/shared_memory.h"

#include <algorithm>
#include <functional>

namespace lockstep::comm {
namespace {

// Whether `bytes` from `offset` on are within `size`. No sum, so no number overflows.
bool fits(std::uint64_t offset, std::size_t bytes, std::size_t size) {
  return offset <= size && bytes <= size - offset;
}

bool includes(const std::vector<int>& members, std::span<const int> who) {
  return std::all_of(who.begin(), who.end(), [&](int rank) {
    return std::find(members.begin(), members.end(), rank) != members.end();
  });
}

}  // namespace

void SharedMemory::add(std::uint64_t id, std::vector<int> members,
                       std::weak_ptr<SharedArena> arena) {
  const base::Lock lock(mutex_);
  std::erase_if(known_, [](const Known& known) { return known.arena.expired(); });
  known_.push_back({id, std::move(members), std::move(arena)});
}

ArenaAddress SharedMemory::locate(const void* data, std::size_t bytes,
                                  std::span<const int> who) const {
  const auto* first = static_cast<const std::byte*>(data);
  const base::Lock lock(mutex_);
  for (const Known& known : known_) {
    const auto arena = known.arena.lock();
    if (!arena || std::less<>{}(first, arena->data())) continue;
    const auto offset = static_cast<std::uint64_t>(first - arena->data());
    if (fits(offset, bytes, arena->size()) && includes(known.members, who))
      return {known.id, offset};
  }
  return {};
}

std::shared_ptr<std::byte> SharedMemory::resolve(int link_rank, ArenaAddress address,
                                                 std::size_t bytes, std::size_t alignment) const {
  const base::Lock lock(mutex_);
  for (const Known& known : known_) {
    if (known.id != address.arena) continue;
    const auto member = std::find(known.members.begin(), known.members.end(), link_rank);
    auto arena = known.arena.lock();
    if (!arena || member == known.members.end()) continue;
    const int rank = static_cast<int>(member - known.members.begin());
    if (!fits(address.offset, bytes, arena->size_of(rank)) || address.offset % alignment != 0)
      return nullptr;
    std::byte* at = arena->of(rank) + address.offset;
    return {std::move(arena), at};
  }
  return nullptr;
}

}  // namespace lockstep::comm
