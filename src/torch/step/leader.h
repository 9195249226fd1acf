// What one worker does for all.
#pragma once

#include <lockstep/comm.h>

#include <functional>
#include <string>

namespace lockstep::steps {

// What rank 0 found: a text, or the failure that all then throw. Collective.
std::string from_leader(Comm& comm, const std::function<std::string()>& read);

}  // namespace lockstep::steps
