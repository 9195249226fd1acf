// What the parsers of our commands have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lockstep::app {

// Of an option given twice the last one counts, so that a script's choice can be overruled; --help is ours.
inline void set_up(CLI::App& parser) {
  parser.set_help_flag();
  parser.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
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

}  // namespace lockstep::app
