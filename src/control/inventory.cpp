#include "control/inventory.h"

#include <lockstep/world.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace lockstep::control {

void Inventory::move_to(World& world) {
  Inventory& there = *world.inventory();
  there.brings_ = true;
  there.source_.reset();
  there.nobody_is_new_ = world.elastic() && world.survivors() == world.size();
  const auto members = std::exchange(members_, {});
  // First all of them: if one cannot go on there, all of them go on from there in the next attempt.
  for (const auto& weak : members) there.add(weak);
  for (const auto& weak : members) {
    if (const auto member = weak.lock()) member->rebind(world);
  }
}

int Inventory::source() {
  if (source_) return *source_;
  if (nobody_is_new_) return 0;
  std::vector<std::uint8_t> brings(static_cast<std::size_t>(comm_.size()));
  brings[static_cast<std::size_t>(comm_.rank())] = brings_ ? 1 : 0;
  const CallName call(comm_, "making or rebinding");
  comm_.all_reduce({brings.data(), brings.size(), DType::kUInt8}, {.op = ReduceOp::kMax}).wait();
  const auto first = std::find(brings.begin(), brings.end(), 1);
  some_bring_ = first != brings.end();
  source_ = first == brings.end() ? 0 : static_cast<int>(first - brings.begin());
  return *source_;
}

}  // namespace lockstep::control
