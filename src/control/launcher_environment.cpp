#include "control/launcher_environment.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/environment.h"
#include "base/hash.h"
#include "base/process.h"

namespace lockstep::control {
namespace {

constexpr int kMostWorkers = 1 << 16;
constexpr double kMostSeconds = 1e7;
// Slurm numbers the steps that are shells of an allocation (batch, interactive, extern) from here.
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

std::optional<int> number(const Lookup& lookup, const char* variable, int least, int most) {
  const auto text = lookup(variable);
  if (!text) return std::nullopt;
  const auto value = base::parse_number(*text);
  if (!value || *value < least || *value > most) {
    throw BadInput(fmt::format("{}={} is not a whole number from {} to {}", variable,
                               text->substr(0, 100), least, most));
  }
  return static_cast<int>(*value);
}

int needed_number(const Lookup& lookup, const char* variable, int least, const char* because) {
  const auto value = number(lookup, variable, least, kMostWorkers);
  if (value) return *value;
  throw BadInput(
      fmt::format("{} is not set, though {} is: start the workers with their launcher, or "
                  "unset {}",
                  variable, because, because));
}

struct Variables {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// The four numbers of a launcher that sets all four.
void read_numbers(const Lookup& lookup, const Variables& variables, LaunchInfo& info,
                  const char* because) {
  info.rank = needed_number(lookup, variables.rank, 0, because);
  info.size = needed_number(lookup, variables.size, 1, because);
  info.local_rank = needed_number(lookup, variables.local_rank, 0, because);
  info.local_size = needed_number(lookup, variables.local_size, 1, because);
}

constexpr Variables kTorchVariables{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Variables kOpenMpiVariables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Variables kMpichVariables{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

// What a launcher says of a process: its rank, and a name for the job. No other job of this user on
// this host has the same name at the same time.
struct Found {
  LaunchInfo info;
  std::string job;
};

std::optional<Found> find_lockstep(const Lookup& lookup) {
  if (!lookup("LOCKSTEP_RENDEZVOUS") || !lookup("LOCKSTEP_SECRET_FD")) return std::nullopt;
  Found found;
  found.info.launcher = Launcher::kLockstep;
  read_numbers(lookup, kTorchVariables, found.info, "LOCKSTEP_SECRET_FD");
  found.info.secret_fd = number(lookup, "LOCKSTEP_SECRET_FD", 0, 1 << 30);
  found.info.loss_fd = number(lookup, "LOCKSTEP_LOSS_FD", 0, 1 << 30);
  found.info.elastic = lookup("LOCKSTEP_ELASTIC").has_value();
  found.info.news_fd = number(lookup, "LOCKSTEP_NEWS_FD", 0, 1 << 30);
  found.info.estate_fd = number(lookup, "LOCKSTEP_ESTATE_FD", 0, 1 << 30);
  // Of a job whose number of workers may grow: each has a place among these.
  if (const auto places = number(lookup, "LOCKSTEP_PLACES", 1, kMostWorkers))
    found.info.size = found.info.local_size = *places;
  return found;
}

// The default run id is the same for every job, so the address of torchrun's own store is part of the
// name. The restart count is, too: a restarted job must not meet old workers of its own.
std::optional<Found> find_torchrun(const Lookup& lookup) {
  const auto run = lookup("TORCHELASTIC_RUN_ID");
  if (!run) return std::nullopt;
  Found found;
  found.info.launcher = Launcher::kTorchrun;
  read_numbers(lookup, kTorchVariables, found.info, "TORCHELASTIC_RUN_ID");
  found.job = fmt::format("{}/{}/{}/{}", *run, lookup("MASTER_ADDR").value_or(""),
                          lookup("MASTER_PORT").value_or(""),
                          lookup("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  return found;
}

std::optional<Found> find_openmpi(const Lookup& lookup) {
  if (!lookup("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  Found found;
  found.info.launcher = Launcher::kOpenMpi;
  read_numbers(lookup, kOpenMpiVariables, found.info, "OMPI_COMM_WORLD_RANK");
  for (const char* variable :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"}) {
    if (found.job.empty()) found.job = lookup(variable).value_or("");
  }
  return found;
}

// Slurm's own PMI sets PMI_RANK as well, but not the local rank.
std::optional<Found> find_mpich(const Lookup& lookup) {
  if (!lookup("PMI_RANK") || !lookup("MPI_LOCALRANKID")) return std::nullopt;
  Found found;
  found.info.launcher = Launcher::kMpich;
  read_numbers(lookup, kMpichVariables, found.info, "MPI_LOCALRANKID");
  return found;
}

// The shell of an allocation also has SLURM_PROCID=0 and the allocation's SLURM_NTASKS, but it is no
// step of srun. A program that is started there by hand is alone, not the first of many.
bool inside_slurm_step(const Lookup& lookup) {
  const auto step = lookup("SLURM_STEP_ID");
  if (!step || !lookup("SLURM_PROCID")) return false;
  const auto id = base::parse_number(*step);
  return id && *id >= 0 && *id < kFirstSpecialStep;
}

int slurm_local_size(const Lookup& lookup, int size) {
  const auto nodes =
      lookup("SLURM_STEP_NUM_NODES") ? lookup("SLURM_STEP_NUM_NODES") : lookup("SLURM_NNODES");
  if (nodes == "1") return size;
  const auto tasks = lookup("SLURM_STEP_TASKS_PER_NODE");
  const auto node = number(lookup, "SLURM_NODEID", 0, kMostWorkers);
  if (!tasks || !node) return 1;
  return slurm_tasks_of_node(*tasks, *node).value_or(1);
}

std::optional<Found> find_slurm(const Lookup& lookup) {
  if (!inside_slurm_step(lookup)) return std::nullopt;
  Found found;
  LaunchInfo& info = found.info;
  info.launcher = Launcher::kSlurm;
  info.rank = needed_number(lookup, "SLURM_PROCID", 0, "SLURM_STEP_ID");
  const auto step_size = number(lookup, "SLURM_STEP_NUM_TASKS", 1, kMostWorkers);
  info.size = step_size ? *step_size : needed_number(lookup, "SLURM_NTASKS", 1, "SLURM_STEP_ID");
  info.local_rank = needed_number(lookup, "SLURM_LOCALID", 0, "SLURM_STEP_ID");
  info.local_size = std::max(slurm_local_size(lookup, info.size), info.local_rank + 1);
  found.job = fmt::format("{}.{}", lookup("SLURM_JOB_ID").value_or(""),
                          lookup("SLURM_STEP_ID").value_or(""));
  return found;
}

// Some other launcher, or a person, set torch's variables.
std::optional<Found> find_environment(const Lookup& lookup) {
  if (!lookup("RANK") || !lookup("WORLD_SIZE")) return std::nullopt;
  Found found;
  LaunchInfo& info = found.info;
  info.launcher = Launcher::kEnvironment;
  info.rank = needed_number(lookup, "RANK", 0, "WORLD_SIZE");
  info.size = needed_number(lookup, "WORLD_SIZE", 1, "RANK");
  const bool one_host = lookup("LOCKSTEP_RENDEZVOUS").value_or("").starts_with("unix:");
  info.local_rank =
      number(lookup, "LOCAL_RANK", 0, kMostWorkers).value_or(one_host ? info.rank : 0);
  info.local_size = number(lookup, "LOCAL_WORLD_SIZE", 1, kMostWorkers)
                        .value_or(one_host ? info.size : info.local_rank + 1);
  return found;
}

void check_numbers(const LaunchInfo& info) {
  if (info.rank < info.size && info.local_rank < info.local_size && info.local_size <= info.size) {
    return;
  }
  throw BadInput(
      fmt::format("{} says rank {} of {} and local rank {} of {}, which cannot be; start the "
                  "workers with their launcher",
                  name(info.launcher), info.rank, info.size, info.local_rank, info.local_size));
}

[[noreturn]] void ask_for_meeting_place(const LaunchInfo& info) {
  throw BadInput(fmt::format(
      "{} workers started by {} are on several hosts and were not told where to meet; set "
      "LOCKSTEP_RENDEZVOUS=HOST:PORT (a free port of rank 0's host) and LOCKSTEP_SECRET_FILE=FILE "
      "(the "
      "same file, of mode 600, on every host)",
      info.size, name(info.launcher)));
}

// Without LOCKSTEP_RENDEZVOUS: what the workers of one host can derive.
Address derived_rendezvous(const Found& found, std::uint32_t user) {
  if (found.info.local_size < found.info.size) ask_for_meeting_place(found.info);
  if (found.job.empty()) {
    throw BadInput(
        fmt::format("nothing in the environment tells this job of {} workers from another; "
                    "set LOCKSTEP_RENDEZVOUS=unix:NAME, with a name of its own for every job",
                    found.info.size));
  }
  const std::string identity = fmt::format("{}/{}/{}", name(found.info.launcher), user, found.job);
  const std::string digest = base::to_hex(base::sha256(identity)).substr(0, 32);
  return {Address::Kind::kUnix, fmt::format("lockstep-{}", digest), 0};
}

void find_meeting_place(const Lookup& lookup, std::uint32_t user, Found& found) {
  LaunchInfo& info = found.info;
  info.interface_name = lookup("LOCKSTEP_INTERFACE").value_or("");
  info.secret_file = lookup("LOCKSTEP_SECRET_FILE");
  info.rank_0_hosts = info.launcher != Launcher::kLockstep;
  const auto said = lookup("LOCKSTEP_RENDEZVOUS");
  info.rendezvous = said ? parse_address(*said) : derived_rendezvous(found, user);
  if (info.rendezvous.kind == Address::Kind::kTcp) {
    if (!info.secret_fd && !info.secret_file) {
      throw BadInput(
          fmt::format("LOCKSTEP_RENDEZVOUS={} is on a network and there is no secret; set "
                      "LOCKSTEP_SECRET_FILE=FILE "
                      "(the same file, of mode 600, on every host)",
                      *said));
    }
  } else if (info.local_size < info.size && info.launcher != Launcher::kLockstep) {
    throw BadInput(
        fmt::format("LOCKSTEP_RENDEZVOUS={} reaches one host only, and {} workers are on "
                    "several; set it to HOST:PORT",
                    *said, info.size));
  }
}

}  // namespace

const char* name(Launcher launcher) noexcept {
  switch (launcher) {
    case Launcher::kAlone:
      return "alone";
    case Launcher::kLockstep:
      return "lockstep";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "openmpi";
    case Launcher::kMpich:
      return "mpich";
    case Launcher::kSlurm:
      return "slurm";
    case Launcher::kEnvironment:
      return "environment";
  }
  return "unknown";
}

LaunchInfo find_launch_info(const Lookup& lookup, std::uint32_t user,
                            const std::string& mpich_proxy) {
  using Finder = std::optional<Found> (*)(const Lookup&);
  for (const Finder find :
       {find_lockstep, find_torchrun, find_openmpi, find_mpich, find_slurm, find_environment}) {
    auto found = find(lookup);
    if (!found) continue;
    check_numbers(found->info);
    if (found->info.launcher == Launcher::kMpich) found->job = mpich_proxy;
    if (found->info.size > 1 || found->info.elastic) find_meeting_place(lookup, user, *found);
    return found->info;
  }
  return {};
}

LaunchInfo find_launch_info() {
  const int proxy = base::ancestor_named("hydra_pmi_proxy");
  return find_launch_info(
      base::environment, ::geteuid(),
      proxy > 0 ? fmt::format("{} {}", base::process_namespace(), proxy) : std::string());
}

std::chrono::milliseconds parse_seconds(std::string_view text, std::string_view what) {
  const auto seconds = base::parse_real(text);
  if (!seconds || *seconds < 0.001 || *seconds > kMostSeconds) {
    throw BadInput(fmt::format("{}={} is not a number of seconds from 0.001 to {:g}", what,
                               text.substr(0, 100), kMostSeconds));
  }
  return std::chrono::milliseconds(std::llround(*seconds * 1000));
}

std::optional<int> slurm_tasks_of_node(std::string_view text, int node) {
  std::int64_t first = 0;  // of the group that is being read
  while (!text.empty()) {
    const std::string_view group = text.substr(0, text.find(','));
    text.remove_prefix(std::min(group.size() + 1, text.size()));
    const std::size_t times = group.find("(x");
    std::optional<std::int64_t> nodes = 1;
    if (times != std::string_view::npos) {
      if (group.back() != ')') return std::nullopt;
      nodes = base::parse_number(group.substr(times + 2, group.size() - times - 3));
    }
    const auto tasks = base::parse_number(group.substr(0, times));
    if (!tasks || *tasks < 1 || *tasks > kMostWorkers) return std::nullopt;
    if (!nodes || *nodes < 1 || *nodes > kMostWorkers) return std::nullopt;
    first += *nodes;
    if (node < first) return static_cast<int>(*tasks);
    if (first > kMostWorkers) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace lockstep::control
