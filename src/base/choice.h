// What the command line needs without CLI11, which is slow to compile (base/command_line.h).
//
// A choice is a table with a word for each value of an enum. The program compares values, never words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace lockstep::base {

// One of the values that an option takes, and the word for it.
template <typename Value>
struct Choice {
  Value value;
  std::string_view word;  // a literal
};

// The value of a word; nothing if the table has no such word.
template <typename Value, std::size_t kCount>
std::optional<Value> choice_named(std::string_view word, const Choice<Value> (&choices)[kCount]) {
  for (const auto& choice : choices) {
    if (choice.word == word) return choice.value;
  }
  return std::nullopt;
}

// The word for a value; a table that lacks it is our own bug.
template <typename Value, std::size_t kCount>
const char* word_for(Value value, const Choice<Value> (&choices)[kCount]) {
  for (const auto& choice : choices) {
    if (choice.value == value) return choice.word.data();
  }
  check_failed("value in choices", "every choice has a word", __FILE__, __LINE__);
}

// Each command has a help text of its own, which it prints wherever --help stands.
inline bool asks_for_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(),
                     [](const auto& word) { return word == "--help" || word == "-h"; });
}

}  // namespace lockstep::base
