#include <lockstep/world.h>

#include "control/world_state.h"

namespace lockstep {

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

int World::rank() const {
  return state_->place.rank;
}
int World::size() const {
  return state_->place.size;
}
int World::local_rank() const {
  return state_->place.local_rank;
}
int World::local_size() const {
  return state_->place.local_size;
}
std::uint64_t World::generation() const {
  return state_->generation;
}
const std::string& World::launcher() const {
  return state_->launcher;
}
Comm& World::comm() {
  return state_->comm;
}

}  // namespace lockstep
