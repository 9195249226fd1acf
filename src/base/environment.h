// Environment variables as values: absent and empty are the same, because a script can often only set one to nothing, not
// remove it. A number that is none is BadInput naming the variable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::base {

std::optional<std::string> environment(const char* name);

// The variable as a whole number in [least, most]; absent gives nothing.
std::optional<std::int64_t> environment_number(const char* name, std::int64_t least,
                                               std::int64_t most);

// A whole decimal number, nothing around it; nothing if it is not one or does not fit.
std::optional<std::int64_t> parse_number(std::string_view text);

// A finite decimal number such as 0.5 or 1e-3, nothing around it; nothing if it is not one or does not fit.
std::optional<double> parse_real(std::string_view text);

}  // namespace lockstep::base
