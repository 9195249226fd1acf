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

// If an option is given twice, the last one counts: so a user can overrule a script. CLI11's own --help is
// switched off, because the commands print texts of their own.
inline void set_up(CLI::App& parser) {
  parser.set_help_flag();
  parser.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

// A whole text as a number. from_chars() takes no leading plus sign, so it is removed first.
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

// An option with a number. CLI11 itself reads 1e999 as infinity, 010 as 8, and a number that does not fit
// as the largest that does. Here 010 is 10, and the other two are refused.
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

// An option that takes one word of a table. Only this function reads the word.
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

// Reads the words into the parser's options. For words that cannot be understood it calls refuse(text), which throws.
template <typename Refuse>
void parse_words(CLI::App& parser, const std::vector<std::string>& words, const Refuse& refuse) {
  for (const std::string& word : words) {
    // CLI11 reads `--option=` as the option without a value, if it may have none.
    if (!word.starts_with("--") || word.find('=') + 1 != word.size()) continue;
    const CLI::Option* const option = parser.get_option_no_throw(word.substr(0, word.size() - 1));
    if (option != nullptr && option->get_expected_min() == 0 && option->get_expected_max() > 0)
      refuse(fmt::format("{} has no value after '=': give one, or leave out '='", word));
  }
  try {
    parser.parse(
        std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes the last word first
  } catch (const CLI::ParseError& error) {
    const auto unknown = parser.remaining();
    refuse(unknown.empty() ? error.what() : "unknown option " + unknown.front());
  }
}

}  // namespace lockstep::base
