#include "base/memory_use.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace lockstep::base {
namespace {

// The bytes of a line "Pss:   12 kB"; nothing if it is another one.
std::optional<std::size_t> pss_of(const std::string& line) {
  std::istringstream fields(line);
  std::string key;
  std::size_t kib = 0;
  if (fields >> key >> kib && key == "Pss:") return kib * 1024;
  return std::nullopt;
}

// Whether a line begins a mapping, "7f00-7f10 rw-s …", that an address lies in.
bool begins_mapping_of(const std::string& line, std::uintptr_t address) {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  char dash = 0;
  std::istringstream fields(line);
  return (fields >> std::hex >> begin >> dash >> end) && dash == '-' && begin <= address &&
         address < end;
}

}  // namespace

std::size_t proportional_set_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    if (const auto bytes = pss_of(line)) return *bytes;
  }
  return 0;
}

std::size_t proportional_set_bytes(const void* address) {
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(file, line)) {
    inside = inside || begins_mapping_of(line, reinterpret_cast<std::uintptr_t>(address));
    const auto bytes = inside ? pss_of(line) : std::nullopt;
    if (bytes) return *bytes;
  }
  return 0;
}

}  // namespace lockstep::base
