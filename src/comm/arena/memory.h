// How much memory a process may still take, from files of the kernel.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::comm {

// Where the files are. Tests use their own folders.
struct MemoryFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// The host's available memory, or less if a cgroup (version 2) allows less: every cgroup from that
// of this process up to the root is asked. Page cache counts as free in both, because the kernel
// gives it back before it refuses memory.
std::size_t available_memory(const MemoryFiles& files);

}  // namespace lockstep::comm
