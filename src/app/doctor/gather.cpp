// The facts: reads /proc and /sys, and asks the kernel.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "app/doctor/doctor.h"
#include "base/environment.h"
#include "base/fd.h"
#include "base/files.h"
#include "control/launch/binding.h"
#include "flat/cuda/gpus.h"

namespace lockstep::app {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;
constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Takes the text up to `separator` off the front of `rest`.
std::string_view next_piece(std::string_view& rest, char separator) {
  const auto end = std::min(rest.find(separator), rest.size());
  const auto piece = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return piece;
}

}  // namespace

std::string read_text(const std::string& path) {
  try {
    return std::string(trim(base::read_file(path, kMostBytes)));
  } catch (const Error&) {
    return {};
  }
}

std::optional<std::int64_t> read_number(const std::string& path) {
  return base::parse_number(read_text(path));
}

std::string value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto line = next_piece(text, '\n');
    const auto colon = line.find(':');
    if (colon != std::string_view::npos && trim(line.substr(0, colon)) == key) {
      return std::string(trim(line.substr(colon + 1)));
    }
  }
  return {};
}

int count_list(std::string_view list) {
  std::int64_t count = 0;
  while (!list.empty()) {
    std::string_view range = next_piece(list, ',');
    const auto first = base::parse_number(trim(next_piece(range, '-')));
    const auto last = range.empty() ? first : base::parse_number(trim(range));
    if (first && last && *last >= *first) count += *last - *first + 1;
  }
  return static_cast<int>(count);
}

std::string cgroup_path(std::string_view proc_self_cgroup, std::string_view controller) {
  while (!proc_self_cgroup.empty()) {
    std::string_view line = next_piece(proc_self_cgroup, '\n');
    next_piece(line, ':');
    std::string_view controllers = next_piece(line, ':');
    do {
      if (next_piece(controllers, ',') == controller) return std::string(line);
    } while (!controllers.empty());
  }
  return {};
}

std::string chosen(std::string_view text) {
  const auto open = text.find('[');
  const auto close = text.find(']', open);
  if (open == std::string_view::npos || close == std::string_view::npos) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

namespace {

int count_cores() {
  std::set<std::string> cores;
  const std::string root = "/sys/devices/system/cpu/";
  for (const auto& cpu : base::names_in(root)) {
    const std::string siblings = read_text(root + cpu + "/topology/thread_siblings_list");
    if (!siblings.empty()) cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

std::vector<std::string> vector_extensions(const std::string& cpuinfo) {
  constexpr std::array<std::string_view, 17> kKnown = {
      "sse4_2",      "avx",         "avx2",     "fma",      "f16c",  "avx512f",
      "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "asimdhp",
      "asimddp",     "bf16",        "i8mm",     "sve",      "sve2"};
  std::string flags = value_of(cpuinfo, "flags");
  if (flags.empty()) flags = value_of(cpuinfo, "Features");
  const std::string padded = " " + flags + " ";
  std::vector<std::string> have;
  for (const auto extension : kKnown) {
    if (padded.find(fmt::format(" {} ", extension)) != std::string::npos)
      have.emplace_back(extension);
  }
  return have;
}

void gather_processors(Facts& facts) {
  const std::string cpuinfo = read_text("/proc/cpuinfo");
  facts.processor = value_of(cpuinfo, "model name");
  facts.hardware_threads = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  facts.cores = count_cores();
  if (facts.cores == 0) facts.cores = facts.hardware_threads;
  facts.numa_nodes = std::max(1, count_list(read_text("/sys/devices/system/node/online")));
  facts.knows_nodes = control::knows_topology();
  facts.allowed_threads = count_list(value_of(read_text("/proc/self/status"), "Cpus_allowed_list"));
  facts.vector_extensions = vector_extensions(cpuinfo);
  facts.governor = read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  facts.huge_pages = chosen(read_text("/sys/kernel/mm/transparent_hugepage/enabled"));
}

// The folders of this process's cgroup and of those around it: the tightest limit counts.
std::vector<std::string> cgroup_folders(const std::string& controller) {
  const std::string mount = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
  std::filesystem::path path = cgroup_path(read_text("/proc/self/cgroup"), controller);
  std::vector<std::string> folders;
  for (; path.has_relative_path(); path = path.parent_path())
    folders.push_back(mount + path.string());
  folders.push_back(mount);
  return folders;
}

template <typename T>
void tighten(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

void gather_cgroup(Facts& facts) {
  for (const auto& folder : cgroup_folders("")) {
    const std::string quota = read_text(folder + "/cpu.max");
    const auto blank = quota.find(' ');
    if (blank != std::string::npos) {
      const auto used = base::parse_number(quota.substr(0, blank));
      const auto period = base::parse_number(quota.substr(blank + 1));
      if (used && period && *period > 0) {
        tighten(facts.cgroup_threads, static_cast<double>(*used) / static_cast<double>(*period));
      }
    }
    if (const auto most = read_number(folder + "/memory.max")) {
      tighten(facts.cgroup_memory_bytes, static_cast<std::uint64_t>(*most));
    }
  }
  for (const auto& folder : cgroup_folders("cpu")) {
    const auto used = read_number(folder + "/cpu.cfs_quota_us");
    const auto period = read_number(folder + "/cpu.cfs_period_us");
    if (used && period && *used > 0 && *period > 0) {
      tighten(facts.cgroup_threads, static_cast<double>(*used) / static_cast<double>(*period));
    }
  }
  for (const auto& folder : cgroup_folders("memory")) {
    if (const auto most = read_number(folder + "/memory.limit_in_bytes")) {
      tighten(facts.cgroup_memory_bytes, static_cast<std::uint64_t>(*most));
    }
  }
}

std::uint64_t meminfo(const std::string& text, std::string_view key) {
  const std::string value = value_of(text, key);
  constexpr std::uint64_t kKiB = 1024;
  return static_cast<std::uint64_t>(
             base::parse_number(value.substr(0, value.find(' '))).value_or(0)) *
         kKiB;
}

void gather_memory(Facts& facts) {
  const std::string text = read_text("/proc/meminfo");
  facts.memory_bytes = meminfo(text, "MemTotal");
  facts.available_bytes = meminfo(text, "MemAvailable");
  const base::Fd probe(::memfd_create("lockstep-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  facts.memfd = static_cast<bool>(probe);
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) == 0) {
    facts.shm_bytes = static_cast<std::uint64_t>(status.f_blocks) * status.f_frsize;
  }
}

std::optional<std::uint64_t> finite(rlim_t value) {
  if (value == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

void gather_limits(Facts& facts) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.open_files_hard = finite(limit.rlim_max);
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts.locked_bytes = finite(limit.rlim_cur);
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0) facts.processes = finite(limit.rlim_cur);
}

void gather_devices(Facts& facts) {
  const std::string root = "/proc/driver/nvidia/gpus/";
  for (const auto& slot : base::names_in(root)) {
    const std::string model = value_of(read_text(root + slot + "/information"), "Model");
    facts.gpus.push_back(fmt::format("{} at {}", model.empty() ? "NVIDIA GPU" : model, slot));
  }
  for (const auto& file : base::names_in("/dev")) {
    const std::string_view prefix = "nvidia";
    if (file.rfind(prefix, 0) != 0 ||
        !base::parse_number(std::string_view(file).substr(prefix.size())))
      continue;
    facts.gpu_device_files = true;
    if (base::names_in(root).empty()) facts.gpus.push_back("NVIDIA GPU at /dev/" + file);
  }
  const auto found = cuda::gpus().find();
  facts.cuda_gpus = found.count;
  facts.cuda_missing = found.missing;
  facts.infiniband = base::names_in("/sys/class/infiniband");
}

void gather_interfaces(Facts& facts) {
  const std::string root = "/sys/class/net/";
  for (const auto& name : base::names_in(root)) {
    const std::string folder = root + name;
    InterfaceFact link;
    link.name = name;
    link.loopback = name == "lo";
    link.up = read_text(folder + "/operstate") == "up";
    link.mtu = static_cast<int>(read_number(folder + "/mtu").value_or(0));
    const auto speed = read_number(folder + "/speed");
    if (speed && *speed > 0) link.megabits = static_cast<int>(*speed);
    facts.interfaces.push_back(std::move(link));
  }
}

// Where the loader would find libblas.so.3, with all links followed: Debian's alternatives lead to
// the library in use.
std::string find_blas() {
  std::vector<std::string> folders = {"/usr/local/lib", "/usr/lib64", "/usr/lib"};
  for (const auto& name : base::names_in("/usr/lib")) {
    if (name.find("-linux-gnu") != std::string::npos) folders.push_back("/usr/lib/" + name);
  }
  for (const auto& folder : folders) {
    std::error_code error;
    const auto real = std::filesystem::canonical(folder + "/libblas.so.3", error);
    if (!error) return real.string();
  }
  return {};
}

}  // namespace

Facts gather_facts() {
  Facts facts;
  facts.engines = engines();
  gather_processors(facts);
  gather_cgroup(facts);
  gather_memory(facts);
  gather_limits(facts);
  gather_devices(facts);
  gather_interfaces(facts);
  facts.blas = find_blas();
  return facts;
}

}  // namespace lockstep::app
