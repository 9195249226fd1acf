// What the doctor saw on this host and in this build, before any judgement.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::app {

struct EngineFact {
  std::string name;
  bool built = false;
  std::string about;
};

struct InterfaceFact {
  std::string name;
  bool up = false;
  bool loopback = false;
  int mtu = 0;
  std::optional<int> megabits;  // absent: the driver does not say
};

// Absent values are things that this host does not tell.
struct Facts {
  std::vector<EngineFact> engines;

  // Processors.
  std::string processor;
  int hardware_threads = 0;
  int cores = 0;
  int numa_nodes = 1;
  int allowed_threads = 0;               // those this process may run on
  std::optional<double> cgroup_threads;  // the quota of the cgroup
  std::vector<std::string> vector_extensions;
  std::string governor;
  std::string huge_pages;  // of transparent huge pages: always, madvise, never

  // Memory.
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_bytes = 0;
  std::optional<std::uint64_t> cgroup_memory_bytes;
  bool memfd = false;                      // sealed memory files work
  std::optional<std::uint64_t> shm_bytes;  // size of /dev/shm

  // Limits of this user; absent: unlimited.
  std::optional<std::uint64_t> open_files_hard;
  std::optional<std::uint64_t> locked_bytes;
  std::optional<std::uint64_t> processes;

  // Devices and network.
  std::vector<std::string> gpus;
  bool gpu_device_files = false;
  int cuda_gpus = 0;         // those that --device cuda would use
  std::string cuda_missing;  // why there are none
  std::vector<std::string> infiniband;
  std::vector<InterfaceFact> interfaces;

  // What LibTorch multiplies with: the file that libblas.so.3 leads to; empty: none is installed.
  std::string blas;
};

Facts gather_facts();

}  // namespace lockstep::app
