// What a World handle holds; shared by join() and the handle's members.
#pragma once

#include <lockstep/world.h>

#include <memory>
#include <string>

#include "control/announcements.h"
#include "control/launcher_environment.h"
#include "control/roster.h"

namespace lockstep {

struct World::State {
  control::Place place;
  std::uint64_t generation = 1;
  std::string launcher;
  Device device;
  Comm comm;
  std::uint32_t next_channel = kFirstChannel;
  std::shared_ptr<control::Announcements> announcements = {};  // from the first one on
  std::shared_ptr<control::Roster> roster = {};                // the same

  // Lower ids are for programs that call Comm::channel themselves.
  static constexpr std::uint32_t kFirstChannel = std::uint32_t{1} << 31;
  static constexpr std::uint32_t kAnnouncements = kFirstChannel - 1;
  static constexpr std::uint32_t kRoster = kFirstChannel - 2;
};

}  // namespace lockstep
