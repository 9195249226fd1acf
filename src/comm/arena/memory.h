// How much memory a process may still take, from what the kernel says in files.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::comm {

// Where the kernel says it; tests bring folders of their own.
struct MemoryFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// The least of the host's available memory and of the headroom of every cgroup (version 2) from
// this process's up to the root. Page cache counts as free in both: the kernel gives it back
// before it refuses memory.
std::size_t available_memory(const MemoryFiles& files);

}  // namespace lockstep::comm
