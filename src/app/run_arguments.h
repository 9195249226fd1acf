// The arguments of `lockstep run` as options.
#pragma once

#include <string>
#include <vector>

#include "control/launch/options.h"

namespace lockstep::app {

// The program begins after "--", or at the first argument that is neither an option nor an option's
// value.
struct SplitArguments {
  std::vector<std::string> own;
  std::vector<std::string> command;
};
SplitArguments split_command(const std::vector<std::string>& arguments);

const char* run_help() noexcept;

// BadInput, in one line, for anything that cannot be understood.
control::RunOptions parse_run_arguments(const std::vector<std::string>& arguments);

}  // namespace lockstep::app
