// The files that belong to the command.
#pragma once

#include <string>

namespace lockstep::control {

// Beside the command where it was built; in libexec where it was installed. Empty if it is not there.
std::string own_file(const std::string& name);

// The command itself.
std::string own_program();

}  // namespace lockstep::control
