// `lockstep doctor`: looks, judges, prints.
//
//   facts      what this host and this build are like, without any judgement      gather.cpp
//   findings   what of it is fine, slow or missing, and the next step             diagnose.cpp
//
// Judging is a pure function of the facts, so that a test can make up any host.
#pragma once

#include <lockstep/comm.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::app {

// Prints the findings on standard output. 0, or 1 when one of them makes Lockstep unusable here. BadInput for arguments
// that it does not have.
int doctor(const std::vector<std::string>& arguments);

struct InterfaceFact {
  std::string name;
  bool up = false;
  bool loopback = false;
  int mtu = 0;
  std::optional<int> megabits;  // absent: the driver does not say
};

// An absent or empty value means that this host does not tell.
struct Facts {
  std::vector<EngineInfo> engines;

  // Processors.
  std::string processor;
  int hardware_threads = 0;
  int cores = 0;
  int numa_nodes = 1;
  bool knows_nodes = true;               // the launcher knows which cores are on which
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

// Looks at this host.
Facts gather_facts();

enum class Level : std::uint8_t {
  kOk,       // as it should be
  kNote,     // good to know
  kSlow,     // works, and costs speed
  kMissing,  // something cannot work
};
const char* name(Level level) noexcept;

// One line of the report, with the next step.
struct Finding {
  Level level = Level::kOk;
  std::string topic;   // "blas", "memory" …
  std::string text;    // what is so
  std::string next;    // what to do about it; empty where there is nothing
  bool fatal = false;  // Lockstep cannot be used here at all

  bool operator==(const Finding&) const = default;
};

// A pure function of the facts; the order is that of the report.
std::vector<Finding> diagnose(const Facts& facts);

// The report for people, and for programs.
std::string as_text(const std::vector<Finding>& findings);
std::string as_json(const std::vector<Finding>& findings);

// 1 when a finding is fatal, else 0.
int exit_code(const std::vector<Finding>& findings);

// Small files of /proc and /sys as values: what is absent or unreadable is empty.

// The content without white space at its end.
std::string read_text(const std::string& path);
std::optional<std::int64_t> read_number(const std::string& path);

// The value of the first line "KEY<blanks>: VALUE" of a file such as /proc/cpuinfo.
std::string value_of(std::string_view text, std::string_view key);

// How many processors a list such as "0-3,8" names.
int count_list(std::string_view list);

// The path of this process's cgroup: of one controller of version 1, or of version 2 if `controller` is "".
std::string cgroup_path(std::string_view proc_self_cgroup, std::string_view controller);

// Of "always [madvise] never": madvise.
std::string chosen(std::string_view text);

}  // namespace lockstep::app
