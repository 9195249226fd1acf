// -n and --workers: a number, or MIN:MAX.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "control/launch/options.h"

namespace lockstep::app {

inline void add_workers(CLI::App& parser, std::optional<control::WorkersAsked>& target) {
  parser.add_option_function<std::string>("-n,--workers", [&target](const std::string& text) {
    const auto asked = control::parse_workers("--workers", text);
    if (!asked)
      throw CLI::ValidationError("--workers " + text +
                                 ": give a whole number, or MIN:MAX as in 2:8");
    target = asked;
  });
}

}  // namespace lockstep::app
