#include "base/memory_use.h"

#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::base {

std::size_t proportional_set_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string key;
    std::size_t kib = 0;
    if (fields >> key >> kib && key == "Pss:") return kib * 1024;
  }
  return 0;
}

}  // namespace lockstep::base
