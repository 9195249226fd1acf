#include "bench/measure/time_lines.h"

#include <algorithm>

namespace lockstep::bench {
namespace {

constexpr int kDigits = 4;

void append(std::string& text, double time, std::chars_format format) {
  char digits[512];  // enough for every double
  const auto end = std::to_chars(digits, digits + sizeof digits, time, format, kDigits).ptr;
  text.append(digits, end);
}

}  // namespace

std::vector<std::string> lines_of_times(const TimeLines& form, std::span<const double> times) {
  std::vector<std::string> lines;
  do {
    const auto part = times.first(std::min(times.size(), kTimesOfALine));
    times = times.subspan(part.size());
    std::string line = "{" + form.every + ",";
    if (lines.empty() && !form.first.empty()) line += form.first + ",";
    line += "\"" + form.name + "\":[";
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (i > 0) line += ',';
      append(line, part[i], form.format);
    }
    lines.push_back(line + "]}");
  } while (!times.empty());
  return lines;
}

}  // namespace lockstep::bench
