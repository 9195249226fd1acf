// Every worker learns a text of every worker.
#pragma once

#include <lockstep/comm.h>

#include <string>
#include <vector>

namespace lockstep::control {

// The texts of all workers, by rank. Collective.
std::vector<std::string> gather_text(Comm& comm, const std::string& text);

}  // namespace lockstep::control
