// The judgement of the facts, and its report.
#include "app/doctor/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/choice.h"

namespace lockstep::app {
namespace {

using Findings = std::vector<Finding>;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string gib(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

bool built(const Facts& facts, std::string_view engine) {
  return std::any_of(facts.engines.begin(), facts.engines.end(),
                     [&](const EngineInfo& fact) { return fact.name == engine && fact.built; });
}

void judge_engines(const Facts& facts, Findings& findings) {
  for (const auto& engine : facts.engines) {
    const auto level = engine.built ? Level::kOk : Level::kNote;
    const std::string text =
        fmt::format("{}: {}", engine.name, engine.built ? engine.about : "not in this build");
    findings.push_back({level, "engine", text, engine.built ? "" : engine.about});
  }
}

void judge_share_of_processors(const Facts& facts, Findings& findings) {
  if (facts.allowed_threads > 0 && facts.allowed_threads < facts.hardware_threads) {
    findings.push_back({Level::kNote, "cpu",
                        fmt::format("this process may use {} of {} hardware threads",
                                    facts.allowed_threads, facts.hardware_threads),
                        "see `taskset -p $$` and the container's cpuset"});
  }
  const int usable = facts.allowed_threads > 0 ? facts.allowed_threads : facts.hardware_threads;
  if (facts.cgroup_threads && *facts.cgroup_threads < usable) {
    findings.push_back(
        {Level::kSlow, "cpu",
         fmt::format("the cgroup allows {:g} processors' time: more workers take turns",
                     *facts.cgroup_threads),
         fmt::format("start at most {:.0f} workers, or raise the quota (docker: --cpus)",
                     std::max(1.0, *facts.cgroup_threads))});
  }
}

void judge_processors(const Facts& facts, Findings& findings) {
  findings.push_back(
      {Level::kOk, "cpu",
       fmt::format("{}{} cores, {} hardware threads, {} NUMA node{}",
                   facts.processor.empty() ? "" : facts.processor + ": ", facts.cores,
                   facts.hardware_threads, facts.numa_nodes, facts.numa_nodes == 1 ? "" : "s"),
       ""});
  if (facts.hardware_threads > facts.cores && facts.cores > 0) {
    findings.push_back({Level::kNote, "cpu", "two hardware threads share one core",
                        fmt::format("start at most {} workers times threads", facts.cores)});
  }
  if (facts.numa_nodes > 1) {
    findings.push_back({facts.knows_nodes ? Level::kOk : Level::kSlow, "cpu",
                        facts.knows_nodes
                            ? "`lockstep run` binds workers to NUMA nodes (--bind)"
                            : "`lockstep run` does not know which cores are on which NUMA node",
                        facts.knows_nodes ? "" : "install hwloc (libhwloc-dev) and build again"});
  }
  judge_share_of_processors(facts, findings);
}

void judge_vectors(const Facts& facts, Findings& findings) {
  const auto& have = facts.vector_extensions;
  const bool wide = contains(have, "avx2") || contains(have, "asimd") || contains(have, "sve");
  if (wide) {
    findings.push_back({Level::kOk, "vectors", fmt::format("{}", fmt::join(have, " ")), ""});
  } else {
    findings.push_back(
        {Level::kSlow, "vectors",
         "no AVX2, ASIMD or SVE: arithmetic runs at a fraction of the usual speed",
         "use a newer processor, or let the virtual machine pass the host's through"});
  }
}

void judge_governor(const Facts& facts, Findings& findings) {
  if (facts.governor.empty()) return;
  const bool slow = facts.governor == "powersave" || facts.governor == "conservative";
  findings.push_back({slow ? Level::kSlow : Level::kOk, "frequency",
                      "the governor is " + facts.governor,
                      slow ? "run: sudo cpupower frequency-set -g performance" : ""});
}

void judge_huge_pages(const Facts& facts, Findings& findings) {
  if (facts.huge_pages.empty()) return;
  const bool off = facts.huge_pages == "never";
  findings.push_back(
      {off ? Level::kSlow : Level::kOk, "huge pages", "transparent huge pages: " + facts.huge_pages,
       off ? "run: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled" : ""});
}

void judge_memory(const Facts& facts, Findings& findings) {
  const bool little = facts.available_bytes < kGiB;
  findings.push_back(
      {little ? Level::kSlow : Level::kOk, "memory",
       fmt::format("{} of {} available", gib(facts.available_bytes), gib(facts.memory_bytes)),
       little ? "end other programs, or start fewer workers: each holds a model of its own" : ""});
  if (facts.cgroup_memory_bytes && *facts.cgroup_memory_bytes < facts.memory_bytes) {
    findings.push_back({Level::kNote, "memory",
                        fmt::format("the cgroup allows {}: beyond it the kernel kills workers",
                                    gib(*facts.cgroup_memory_bytes)),
                        "raise it if that is too little (docker: --memory)"});
  }
}

void judge_shared_memory(const Facts& facts, Findings& findings) {
  if (facts.memfd) {
    findings.push_back({Level::kOk, "shared memory", "sealed memory files (memfd) work", ""});
  } else {
    findings.push_back(
        {Level::kMissing, "shared memory",
         "memfd_create fails: workers cannot get the job's secret",
         "use Linux 4.14 or newer, and allow memfd_create in the container's seccomp profile",
         true});
  }
  constexpr std::uint64_t kDockerDefault = std::uint64_t{64} << 20;
  if (facts.shm_bytes && *facts.shm_bytes <= kDockerDefault) {
    findings.push_back(
        {Level::kNote, "shared memory",
         fmt::format("/dev/shm has {} MiB: Lockstep does not use it, NCCL and PyTorch loaders do",
                     *facts.shm_bytes >> 20),
         "docker: --shm-size=1g"});
  }
}

void judge_limits(const Facts& facts, Findings& findings) {
  constexpr std::uint64_t kPerWorker = 7;
  constexpr std::uint64_t kLeastFiles = 4096;
  if (facts.open_files_hard && *facts.open_files_hard < kLeastFiles) {
    findings.push_back({Level::kNote, "limits",
                        fmt::format("{} open files: enough for about {} workers",
                                    *facts.open_files_hard, *facts.open_files_hard / kPerWorker),
                        "raise nofile in /etc/security/limits.conf"});
  } else {
    findings.push_back(
        {Level::kOk, "limits",
         "open files: " + (facts.open_files_hard ? fmt::to_string(*facts.open_files_hard)
                                                 : std::string("unlimited")),
         ""});
  }
  constexpr std::uint64_t kLeastProcesses = 1024;
  if (facts.processes && *facts.processes < kLeastProcesses) {
    findings.push_back({Level::kNote, "limits",
                        fmt::format("{} processes and threads for this user", *facts.processes),
                        "raise nproc in /etc/security/limits.conf"});
  }
  if (!facts.infiniband.empty() && facts.locked_bytes && *facts.locked_bytes < kGiB) {
    findings.push_back(
        {Level::kSlow, "limits",
         fmt::format("{} KiB of locked memory: InfiniBand cannot register buffers",
                     *facts.locked_bytes >> 10),
         "set memlock to unlimited in /etc/security/limits.conf (docker: --ulimit memlock=-1)"});
  }
}

void judge_cuda(const Facts& facts, Findings& findings) {
  if (facts.cuda_gpus > 0) {
    findings.push_back(
        {Level::kOk, "gpu",
         fmt::format("CUDA can use {}: up to {} worker{} with --device cuda", facts.cuda_gpus,
                     facts.cuda_gpus, facts.cuda_gpus == 1 ? "" : "s"),
         ""});
  } else if (facts.gpu_device_files) {
    findings.push_back({Level::kMissing, "gpu", facts.cuda_missing,
                        "compare the versions that `nvidia-smi` and `nvcc --version` print"});
  }
}

void judge_devices(const Facts& facts, Findings& findings) {
  if (facts.gpus.empty() && facts.cuda_gpus == 0) {
    findings.push_back({Level::kNote, "gpu", "no NVIDIA GPU: training runs on the processors", ""});
    return;
  }
  for (const auto& gpu : facts.gpus) findings.push_back({Level::kOk, "gpu", gpu, ""});
  if (!facts.gpu_device_files && facts.cuda_gpus == 0) {
    findings.push_back(
        {Level::kMissing, "gpu", "the driver is loaded but /dev/nvidia0 is not here",
         "start the container with --gpus all, or run: sudo nvidia-modprobe -u -c 0"});
  }
  if (!built(facts, "nccl")) {
    findings.push_back(
        {Level::kSlow, "gpu",
         "this build has no nccl engine: gradients would travel through the processors",
         "install the CUDA toolkit (nvcc) and NCCL (libnccl-dev) and build again"});
    return;
  }
  judge_cuda(facts, findings);
}

void judge_network(const Facts& facts, Findings& findings) {
  if (!facts.infiniband.empty()) {
    findings.push_back({Level::kOk, "network",
                        fmt::format("InfiniBand: {}", fmt::join(facts.infiniband, ", ")), ""});
  }
  constexpr int kFast = 10'000;
  for (const auto& link : facts.interfaces) {
    if (link.loopback || !link.up) continue;
    const std::string speed = link.megabits ? fmt::format(", {} Mbit/s", *link.megabits) : "";
    const bool slow = link.megabits && *link.megabits < kFast;
    findings.push_back(
        {slow ? Level::kNote : Level::kOk, "network",
         fmt::format("{}: MTU {}{}", link.name, link.mtu, speed),
         slow ? "between hosts, use 10 Gbit/s or more for models beyond a few million parameters"
              : ""});
  }
}

void judge_blas(const Facts& facts, Findings& findings) {
  if (facts.blas.empty()) {
    findings.push_back({Level::kNote, "blas",
                        "no system BLAS; a LibTorch that brings its own does not need one",
                        "for Debian's LibTorch run: sudo apt install libopenblas0-pthread"});
    return;
  }
  constexpr std::array<std::string_view, 5> kFast = {"openblas", "mkl", "blis", "armpl", "nvpl"};
  const bool fast = std::any_of(kFast.begin(), kFast.end(), [&](std::string_view library) {
    return facts.blas.find(library) != std::string::npos;
  });
  if (fast) {
    findings.push_back({Level::kOk, "blas", facts.blas, ""});
  } else {
    findings.push_back(
        {Level::kSlow, "blas",
         facts.blas + " is the reference BLAS: matrix products are about 20 times slower",
         "run: sudo apt install libopenblas0-pthread"});
  }
}

}  // namespace

const char* name(Level level) noexcept {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kSlow:
      return "slow";
    case Level::kMissing:
      return "missing";
  }
  return "note";
}

std::vector<Finding> diagnose(const Facts& facts) {
  Findings findings;
  judge_engines(facts, findings);
  judge_devices(facts, findings);
  judge_processors(facts, findings);
  judge_vectors(facts, findings);
  judge_governor(facts, findings);
  judge_huge_pages(facts, findings);
  judge_memory(facts, findings);
  judge_shared_memory(facts, findings);
  judge_limits(facts, findings);
  judge_network(facts, findings);
  judge_blas(facts, findings);
  return findings;
}

int exit_code(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.fatal; })
             ? 1
             : 0;
}

// The report.
namespace {

constexpr char kDoctorHelp[] =
    R"(Looks at this build and this host: engines, devices, processors, memory, limits.

  lockstep doctor [--json]

Every finding is ok, note, slow or missing, with the next step where there is one. The exit code is 0
unless something makes Lockstep unusable here.
)";

std::string summary(const std::vector<Finding>& findings) {
  const auto count = [&](Level level) {
    return std::count_if(findings.begin(), findings.end(),
                         [level](const Finding& finding) { return finding.level == level; });
  };
  const auto slow = count(Level::kSlow);
  const auto missing = count(Level::kMissing);
  if (exit_code(findings) != 0) return "Lockstep cannot be used here until the above is mended.\n";
  if (slow == 0 && missing == 0) return "All is well.\n";
  return fmt::format("{} slow, {} missing: each line above says what to do.\n", slow, missing);
}

}  // namespace

std::string as_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const auto& finding : findings) {
    text += fmt::format("{:<8} {:<14} {}\n", name(finding.level), finding.topic, finding.text);
    if (!finding.next.empty()) text += fmt::format("{:<23} -> {}\n", "", finding.next);
  }
  return text + "\n" + summary(findings);
}

std::string as_json(const std::vector<Finding>& findings) {
  auto list = nlohmann::json::array();
  for (const auto& finding : findings) {
    list.push_back({{"level", name(finding.level)},
                    {"topic", finding.topic},
                    {"text", finding.text},
                    {"next", finding.next},
                    {"fatal", finding.fatal}});
  }
  const nlohmann::json report = {{"findings", std::move(list)},
                                 {"usable", exit_code(findings) == 0}};
  // Names of devices come from drivers and may hold any byte.
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

int doctor(const std::vector<std::string>& arguments) {
  if (base::asks_for_help(arguments)) {
    fmt::print("{}", kDoctorHelp);
    return 0;
  }
  for (const auto& text : arguments) {
    if (text != "--json")
      throw BadInput(fmt::format("unknown option {}; see `lockstep doctor --help`", text));
  }
  const auto findings = diagnose(gather_facts());
  fmt::print("{}", arguments.empty() ? as_text(findings) : as_json(findings));
  return exit_code(findings);
}

}  // namespace lockstep::app
