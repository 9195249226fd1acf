// What the workers of a world leave if all of them die, and how a worker of the next world gets at it.
#pragma once

#include <lockstep/world.h>

#include <cstdint>
#include <vector>

#include "control/rendezvous/estate.h"

namespace lockstep::control {

// A worker's way to the keeper that holds it; null if there is none: the job is not elastic, or another launcher runs it.
const Estate* estate_of(const World& world);

// Gives the keeper the memory that this worker shares in its world now, as part of a set. False if the keeper does not
// take it.
bool give_memory(World& world, std::uint64_t set);

// The world of so many workers that have all ended, as their rank 0 saw it (comm::connect_late). What is made in it gets
// new memory; when all is made that the dead had, show_memory() makes that memory show theirs. Mismatch, and nothing has
// happened, if it does not fit.
World late_world(const World& now, int workers);
void show_memory(World& late, const std::vector<HeldItem>& items);

}  // namespace lockstep::control
