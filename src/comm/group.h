// Some workers of a link, with ranks of their own: what the collectives and the messages of a
// channel share.
#pragma once

#include <lockstep/comm.h>

#include <memory>
#include <vector>

#include "base/hash.h"
#include "comm/core/exchange.h"
#include "comm/core/link.h"

namespace lockstep::comm {

struct Group {
  std::shared_ptr<Link> link;
  std::vector<int> members;  // the link's ranks, by the ranks of the group
  std::uint64_t id = 0;      // the same on every member, different for every channel and split
  int rank = 0;
  std::chrono::milliseconds timeout{0};

  // The number of each member's host, counted among the hosts of the group. Empty if two levels gain
  // nothing: there is one host, or each member has a host of its own, or nobody knows.
  std::vector<int> hosts;
  // The link's ranks of the members on this worker's host.
  std::vector<int> neighbours;
  // Asks the link for these two.
  void find_hosts();

  int size() const { return static_cast<int>(members.size()); }

  // Collectives and messages do not wait for each other, so they have different slots. Of every
  // eight slots, 0 and 1 are for greetings and 2 and 3 for payload. The rest, and the top bit,
  // belong to the engine.
  enum class Lane { kCollectives = 0, kMessages = 1 };
  Setting setting(Lane lane, Scratch& scratch) const {
    const Slot first = (base::mix64(id) >> 4) << 3;
    return {*link, members, first + static_cast<Slot>(lane), scratch};
  }
};

// Comm::share: the workers of a Comm map each other's memory. `id` is the same number on every
// worker, and no other arena has it.
struct Wanted {
  std::size_t bytes = 0;
  Comm::Mappings mappings = Comm::Mappings::kShared;
};
std::shared_ptr<SharedArena> share(Comm& comm, const Group& group, std::uint64_t id, Wanted wanted);

}  // namespace lockstep::comm
