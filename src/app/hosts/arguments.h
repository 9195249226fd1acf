// The options of `run` and `train` that say how many workers there are, and start launchers on other hosts.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "control/launch/options.h"

namespace lockstep::app {

// For --hosts: the words of a command that the launchers of other hosts get, too. Left out are those that only say how
// they are started, and how many workers there are: each host gets its own number.
std::vector<std::string> words_for_hosts(const std::vector<std::string>& own);

// --hosts and what belongs to it, --nodes and what belongs to it. An option that needs another one is refused without it.
void add_hosts(CLI::App& parser, control::HostOptions& hosts, control::NodeOptions& nodes);

// -n and --workers: a number, or MIN:MAX.
void add_workers(CLI::App& parser, std::optional<control::WorkersAsked>& target);

// BadInput if --hosts is given together with options that it sets itself.
void check_hosts(const control::RunOptions& options);

}  // namespace lockstep::app
