#include "base/processor.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

namespace lockstep::base {
namespace {

constexpr std::array<std::string_view, 6> kKeys = {"vendor_id",       "cpu family",  "model",
                                                   "CPU implementer", "CPU variant", "CPU part"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

std::string processor_identity_in(std::string_view cpuinfo) {
  std::set<std::string> kinds;
  std::string kind;  // of the processor whose lines are being read
  while (!cpuinfo.empty()) {
    const std::string_view line = cpuinfo.substr(0, cpuinfo.find('\n'));
    cpuinfo.remove_prefix(std::min(line.size() + 1, cpuinfo.size()));
    const auto colon = line.find(':');
    const std::string_view key = trimmed(line.substr(0, colon));
    if (key == "processor") kinds.insert(std::exchange(kind, {}));
    if (colon == std::string_view::npos) continue;
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) continue;
    if (!kind.empty()) kind += ' ';
    kind += trimmed(line.substr(colon + 1));
  }
  kinds.insert(kind);
  kinds.erase("");
  std::string all;
  for (const std::string& one : kinds) all += (all.empty() ? "" : ", ") + one;
  return all.empty() ? "unknown" : all;
}

std::string processor_identity() {
  std::ifstream file("/proc/cpuinfo");
  return processor_identity_in(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace lockstep::base
