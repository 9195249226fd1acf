#include "base/environment.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace lockstep::base {

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<double> parse_real(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number))
    return std::nullopt;
  return number;
}

std::optional<std::int64_t> environment_number(const char* name, std::int64_t least,
                                               std::int64_t most) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  const auto number = parse_number(*text);
  if (!number || *number < least || *number > most) {
    throw BadInput(
        fmt::format("{}={} is not a whole number from {} to {}", name, *text, least, most));
  }
  return number;
}

}  // namespace lockstep::base
