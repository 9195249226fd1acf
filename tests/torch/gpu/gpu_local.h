// Jobs with local and with asynchronous steps for gpu_actor: one of each kind of round, state and model.
#pragma once

#include <lockstep/world.h>

#include <cstdint>
#include <string>

namespace lockstep::testing {

// Runs them, and returns a line for each: "diloco 9f86…". With a folder they have checkpoints there, from which they go on.
// With `stop` they end after that step, as jobs that were told to. Collective.
std::string local_hashes(World& world, const std::string& folder = "", std::int64_t stop = 0);

// The same for asynchronous steps. They leave their orders in the folder, or replay those that are there.
enum class Orders : bool { kRecorded, kReplayed };
std::string asynchronous_hashes(World& world, const std::string& folder, Orders orders);

}  // namespace lockstep::testing
