// What a loop has after each of its steps, in a file: two files show in which step, and where, two runs begin to differ.
#pragma once

#include <lockstep/world.h>

#include <string>

namespace lockstep::testing {

// Runs the loop of step_test with this model. Writes a line for the loss of each step, and a line with the SHA-256 of each
// parameter and buffer after it: "step 2 conv1.weight 9f86…". Collective.
void log_steps(World& world, const std::string& model, const std::string& path);

}  // namespace lockstep::testing
