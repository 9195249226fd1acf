// What the parsers of our commands have in common.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/choice.h"
#include "base/environment.h"

namespace lockstep::base {

// Of an option given twice the last one counts, so that a script's choice can be overruled; --help is ours.
inline void set_up(CLI::App& parser) {
  parser.set_help_flag();
  parser.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

template <typename Number>
std::optional<Number> number_from(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  if constexpr (std::floating_point<Number>) {
    return parse_real(text);
  } else {
    Number number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return whole ? std::optional(number) : std::nullopt;
  }
}

// An option with a number. CLI11's own reading takes 1e999 for infinity, 010 for 8 and what does not fit for the largest
// that does; here each of them is refused, but that 010 is 10.
template <typename Number, typename Target>
CLI::Option* add_number_as(CLI::App& parser, const std::string& name, Target& target) {
  const auto read = [name, &target](const std::string& text) {
    const auto number = number_from<Number>(text);
    if (!number) {
      throw CLI::ValidationError(
          fmt::format("{} {}: give a {}", name.substr(name.find("--")), text,
                      std::floating_point<Number> ? "finite number, such as 0.1" : "whole number"));
    }
    target = *number;
  };
  return parser.add_option_function<std::string>(name, read);
}
template <typename Number>
CLI::Option* add_number(CLI::App& parser, const std::string& name, Number& target) {
  return add_number_as<Number>(parser, name, target);
}
template <typename Number>
CLI::Option* add_number(CLI::App& parser, const std::string& name, std::optional<Number>& target) {
  return add_number_as<Number>(parser, name, target);
}

// An option that takes one word of a table, read here and nowhere else: the program compares values, not words.
template <typename Value, std::size_t kCount, typename Target>
CLI::Option* add_choice(CLI::App& parser, const std::string& name,
                        const Choice<Value> (&choices)[kCount], Target& target) {
  const auto read = [name, &choices, &target](const std::string& text) {
    const auto value = choice_named(text, choices);
    std::vector<std::string_view> words;
    for (const auto& choice : choices) words.push_back(choice.word);
    if (!value) {
      throw CLI::ValidationError(
          fmt::format("{} {}: choose from {}", name, text, fmt::join(words, ", ")));
    }
    target = *value;
  };
  return parser.add_option_function<std::string>(name, read);
}

// Reads the words into the parser's options; refuse(text) throws for those that cannot be understood.
template <typename Refuse>
void parse_words(CLI::App& parser, const std::vector<std::string>& words, const Refuse& refuse) {
  try {
    parser.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // as CLI11 takes them
  } catch (const CLI::ParseError& error) {
    const auto unknown = parser.remaining();
    refuse(unknown.empty() ? error.what() : "unknown option " + unknown.front());
  }
}

}  // namespace lockstep::base
