// How workers print the times that they took: as lines of JSON that get through every launcher.
//
// `lockstep run` cuts lines in pieces, at 1 MiB with few workers and at 256 KiB with 256, the most that are measured; so
// many times stand on several lines. Needs nothing but the standard library, as the peers' programs.
#pragma once

#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::bench {

// A time takes some 20 bytes at the most, so that a line stays below 100 KiB.
inline constexpr std::size_t kTimesOfALine = 4096;

struct TimeLines {
  std::string every;  // what each line begins with: "\"rank\":0"
  std::string first;  // what only the first has after it; may be empty
  std::string name;   // of the array of times
  std::chars_format format =
      std::chars_format::fixed;  // with 4 digits: as %.4f, or as %.4g if general
};

// {EVERY,FIRST,"NAME":[…]} and then as many {EVERY,"NAME":[…]} as are needed. One line, with an empty array, for no times.
std::vector<std::string> lines_of_times(const TimeLines& form, std::span<const double> times);

}  // namespace lockstep::bench
