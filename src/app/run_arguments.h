// The arguments of `lockstep run` as options.
#pragma once

#include <CLI/CLI.hpp>
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

// For --hosts: the words of a command that the launchers of other hosts get, too. Left out are those that only say how
// they are started, and how many workers there are: each host gets its own number.
std::vector<std::string> words_for_hosts(const std::vector<std::string>& own);

// --hosts and what belongs to it.
void add_hosts(CLI::App& parser, control::HostOptions& hosts);

// BadInput if --hosts is given together with options that it sets itself.
void check_hosts(const control::RunOptions& options);

}  // namespace lockstep::app
