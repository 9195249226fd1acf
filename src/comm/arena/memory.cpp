#include "comm/arena/memory.h"

#include <lockstep/arena.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/environment.h"

namespace lockstep::comm {
namespace {

std::optional<std::size_t> to_size(const std::string& text) {
  const auto number = base::parse_number(text);
  return number && *number >= 0 ? std::optional<std::size_t>(*number) : std::nullopt;
}

std::optional<std::size_t> number_in_file(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;  // absent; "max" is no number either
  return to_size(text);
}

std::size_t host_available(const std::string& proc) {
  std::ifstream file(proc + "/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string key;
    std::size_t kib = 0;
    if (fields >> key >> kib && key == "MemAvailable:") return kib * 1024;
  }
  struct sysinfo info {};
  ::sysinfo(&info);
  return static_cast<std::size_t>(info.freeram) * info.mem_unit;
}

// What a cgroup uses and can give back: the cache of files. Shared memory cannot be given back. It
// is counted in "file", but not in these two lines.
std::size_t reclaimable(const std::string& folder, std::size_t used) {
  std::ifstream file(folder + "/memory.stat");
  std::string key;
  std::string text;
  std::size_t cache = 0;
  while (file >> key >> text) {
    if (key != "active_file" && key != "inactive_file") continue;
    cache += std::min(to_size(text).value_or(0), used - cache);  // never more than is used
  }
  return cache;
}

std::optional<std::size_t> headroom(const std::string& folder) {
  const auto limit = number_in_file(folder + "/memory.max");
  const auto used = number_in_file(folder + "/memory.current");
  if (!limit || !used) return std::nullopt;
  const std::size_t kept = *used - reclaimable(folder, *used);
  return *limit > kept ? *limit - kept : 0;
}

// What the tightest cgroup still allows, from that of this process up to the root.
std::optional<std::size_t> cgroup_available(const MemoryFiles& files) {
  std::ifstream file(files.proc + "/self/cgroup");
  std::string line;
  std::optional<std::size_t> least;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::string path = line.substr(3);
    while (true) {
      const auto here = headroom(files.cgroup + path);
      if (here) least = std::min(least.value_or(*here), *here);
      const auto slash = path.rfind('/');
      if (path.size() <= 1 || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return least;
}

}  // namespace

std::size_t available_memory(const MemoryFiles& files) {
  const std::size_t host = host_available(files.proc);
  return std::min(host, cgroup_available(files).value_or(host));
}

}  // namespace lockstep::comm

namespace lockstep {

std::size_t available_memory_bytes() {
  return comm::available_memory({});
}

}  // namespace lockstep
