// What a World handle holds; shared by join() and the handle's members.
#pragma once

#include <lockstep/world.h>

#include <string>

#include "control/launcher_environment.h"

namespace lockstep {

struct World::State {
  control::Place place;
  std::uint64_t generation = 1;
  std::string launcher;
  Comm comm;
};

}  // namespace lockstep
