#include "control/legacy.h"

#include <fmt/format.h>
#include <lockstep/arena.h>
#include <lockstep/errors.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "comm/group.h"
#include "control/world_state.h"

namespace lockstep::control {
namespace {

// The memories of a world. Groups are numbered in the order in which they come: their ids depend on what else the program
// has opened.
class Numbered {
 public:
  explicit Numbered(World& world) : all_(comm::Inside::book_of(world.comm()).in_use()) {}

  template <typename Visit>
  void for_each(const Visit& visit) const {
    std::map<std::uint64_t, std::uint64_t> groups;
    std::map<std::uint64_t, std::uint32_t> next;
    for (const auto& [id, kind, arena] : all_) {
      const std::uint64_t group = groups.emplace(id, groups.size()).first->second << 8 | kind;
      visit(group, next[group]++, *arena);
    }
  }

 private:
  std::vector<comm::ArenaBook::Entry> all_;
};

using Place = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;  // group, number, rank

std::map<Place, Arena> attached(const std::vector<HeldItem>& items) {
  std::map<Place, Arena> all;
  for (const auto& [item, memory] : items)
    all.emplace(Place{item.group, item.number, item.rank}, Arena::attach(memory.get(), item.bytes));
  return all;
}

}  // namespace

const Estate* estate_of(const World& world) {
  return Joining::estate_of(world);
}

World late_world(const World& now, int workers) {
  return Joining::late_world(now, workers);
}

bool give_memory(World& world, std::uint64_t set) {
  const Estate* const estate = estate_of(world);
  bool taken = estate != nullptr;
  Numbered(world).for_each([&](std::uint64_t group, std::uint32_t number, SharedArena& arena) {
    const Arena& own = arena.own();
    const auto rank = static_cast<std::uint32_t>(arena.rank());
    taken = taken && estate->give({set, group, rank, number, own.size()}, own.fd());
  });
  return taken;
}

void show_memory(World& late, const std::vector<HeldItem>& items) {
  std::map<Place, Arena> left = attached(items);
  const Numbered made(late);
  const auto place = [](std::uint64_t group, std::uint32_t number, int rank) {
    return Place{group, number, static_cast<std::uint32_t>(rank)};
  };
  made.for_each([&](std::uint64_t group, std::uint32_t number, SharedArena& arena) {
    for (int rank = 0; rank < arena.workers(); ++rank) {
      const auto found = left.find(place(group, number, rank));
      if (found != left.end() && found->second.size() <= arena.size_of(rank)) continue;
      throw Mismatch(fmt::format("memory {} of group {} has {} bytes, and rank {} has left {}",
                                 number, group, arena.size_of(rank), rank,
                                 found == left.end() ? 0 : found->second.size()));
    }
  });
  made.for_each([&](std::uint64_t group, std::uint32_t number, SharedArena& arena) {
    for (int rank = 0; rank < arena.workers(); ++rank)
      arena.show(rank, left.at(place(group, number, rank)));
  });
}

}  // namespace lockstep::control
