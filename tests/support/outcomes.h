// How workers that are processes tell their outcomes: through files.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tests/support/workers.h"

namespace lockstep::testing {

// A file's content; empty if there is none.
std::string slurp(const std::string& path);
// Readers see a file whole or not at all.
void publish(const std::string& path, std::string_view value);

Outcome outcome_of(const std::function<void()>& body);
std::string to_text(const Outcome& outcome);
Outcome from_text(const std::string& text);

}  // namespace lockstep::testing
