// What every worker says, to all.
#pragma once

#include <lockstep/comm.h>

#include <string>
#include <vector>

namespace lockstep::control {

// The values of a text on all workers, by rank. Collective.
std::vector<std::string> gather_text(Comm& comm, const std::string& text);

}  // namespace lockstep::control
