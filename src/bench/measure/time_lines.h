// How workers print the times that they took: as lines of JSON that pass through every launcher.
//
// `lockstep run` cuts long lines: at 1 MiB with few workers, and at 256 KiB with 256 workers, the
// most that are measured. So many times are printed on several lines. This needs only the standard
// library, because the programs of the peers use it, too.
#pragma once

#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::bench {

// A time takes at most about 20 bytes, so a line stays below 100 KiB.
inline constexpr std::size_t kTimesOfALine = 4096;

struct TimeLines {
  std::string every;  // every line begins with it: "\"rank\":0"
  std::string first;  // follows on the first line only; may be empty
  std::string name;   // of the array of times
  std::chars_format format =
      std::chars_format::fixed;  // with 4 digits: as %.4f; if general, as %.4g
};

// {EVERY,FIRST,"NAME":[…]}, and then as many lines {EVERY,"NAME":[…]} as are needed. If there are
// no times, one line with an empty array.
std::vector<std::string> lines_of_times(const TimeLines& form, std::span<const double> times);

}  // namespace lockstep::bench
