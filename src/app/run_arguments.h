// The arguments of `lockstep run` as options.
#pragma once

#include <string>
#include <vector>

#include "control/launch/options.h"

namespace lockstep::app {

// The words before the program, which are ours, and the program with its arguments. The program
// begins after "--", or at the first word that is neither an option nor the value of one.
struct SplitArguments {
  std::vector<std::string> own;
  std::vector<std::string> command;
};
SplitArguments split_command(const std::vector<std::string>& arguments);

extern const char* const kRunHelp;

// BadInput, in one line, for anything that cannot be understood.
control::RunOptions parse_run_arguments(const std::vector<std::string>& arguments);

}  // namespace lockstep::app
