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
Device World::device() const {
  return state_->device;
}
Comm& World::comm() {
  return state_->comm;
}
Comm World::open_channel() {
  return state_->comm.channel(state_->next_channel++);
}

const std::shared_ptr<control::Announcements>& World::announcements() {
  auto& made = state_->announcements;
  if (!made)
    made = std::make_shared<control::Announcements>(state_->comm.channel(State::kAnnouncements));
  return made;
}

const std::shared_ptr<control::Roster>& World::roster() {
  auto& made = state_->roster;
  if (!made) made = std::make_shared<control::Roster>(state_->comm.channel(State::kRoster));
  return made;
}

World World::over(Comm comm, Device device) {
  control::Place place;
  place.rank = place.local_rank = comm.rank();
  place.size = place.local_size = comm.size();
  return World(std::make_unique<State>(State{place, 1, "program", device, std::move(comm)}));
}

}  // namespace lockstep
