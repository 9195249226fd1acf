#include "comm/group.h"

#include <map>

namespace lockstep::comm {

void ArenaBook::add(const Entry& entry) {
  const base::Lock lock(mutex_);
  std::erase_if(known_, [](const Known& known) { return known.arena.expired(); });
  known_.push_back({entry.group, entry.kind, entry.arena});
}

std::vector<ArenaBook::Entry> ArenaBook::in_use() const {
  const base::Lock lock(mutex_);
  std::vector<Entry> entries;
  for (const Known& known : known_) {
    if (auto arena = known.arena.lock())
      entries.push_back({known.group, known.kind, std::move(arena)});
  }
  return entries;
}

void Group::find_hosts() {
  hosts.clear();
  neighbours.clear();
  const std::span<const int> all = link->hosts();
  std::map<int, int> known;
  for (const int member : members) {
    const int host = all.empty() ? 0 : all[static_cast<std::size_t>(member)];
    const int next = static_cast<int>(known.size());
    hosts.push_back(known.emplace(host, next).first->second);
    if (all.empty() || host == all[static_cast<std::size_t>(link->rank())])
      neighbours.push_back(member);
  }
  const bool gains = known.size() > 1 && known.size() < members.size();
  if (!gains) hosts.clear();
}

}  // namespace lockstep::comm
