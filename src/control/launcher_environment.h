// Who started this process, and what its rank among the workers is. Pure: a function of the
// environment's variables and of what the kernel says about the process.
//
//   lockstep     LOCKSTEP_RENDEZVOUS and LOCKSTEP_SECRET_FD: the launcher hosts the rendezvous
//   torchrun     TORCHELASTIC_RUN_ID
//   openmpi      OMPI_COMM_WORLD_RANK
//   mpich        PMI_RANK and MPI_LOCALRANKID: mpiexec of MPICH and its kin (Hydra)
//   slurm        SLURM_PROCID inside a step that srun started
//   environment  RANK and WORLD_SIZE, set by something else
//   alone        none of these
//
// The first one in this list that fits counts. Inner launchers come first: torchrun inside a Slurm
// step is torchrun, because torchrun has numbered the workers last.
//
// Under all launchers but our own, rank 0 hosts the rendezvous: at LOCKSTEP_RENDEZVOUS, or, if all
// workers are on one host, on an abstract socket. All workers derive the socket's name from the
// launcher's name for the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "control/rendezvous/address.h"

namespace lockstep::control {

enum class Launcher : std::uint8_t {
  kAlone,
  kLockstep,
  kTorchrun,
  kOpenMpi,
  kMpich,
  kSlurm,
  kEnvironment
};

// "alone", "lockstep" …
const char* name(Launcher launcher) noexcept;

// The value of a variable; nothing when it is absent or empty.
using Lookup = std::function<std::optional<std::string>(const char*)>;

// All that join() learns from the environment.
struct LaunchInfo {
  Launcher launcher = Launcher::kAlone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;

  // For more than one worker.
  Address rendezvous;
  bool rank_0_hosts = false;
  std::string interface_name;  // LOCKSTEP_INTERFACE; empty: not said
  std::optional<int> secret_fd;
  std::optional<std::string> secret_file;
  std::optional<int> loss_fd;    // the channel to the launcher (rendezvous/loss.h)
  bool elastic = false;          // workers may leave and join
  std::optional<int> news_fd;    // what the launcher tells meanwhile (rendezvous/news.h)
  std::optional<int> estate_fd;  // for memory that outlives all workers (rendezvous/estate.h)
};

// BadInput, in one line that says what to set, when the variables contradict each other or workers
// on several hosts were not told where to meet.
// `mpich_proxy`: the process that started this host's workers for MPICH's mpiexec, which names no
// job; empty if there is none.
LaunchInfo find_launch_info(const Lookup& lookup, std::uint32_t user,
                            const std::string& mpich_proxy = {});

// The same for this process.
LaunchInfo find_launch_info();

// Seconds, a fraction allowed: "30", "0.5". BadInput naming `what` for anything else.
std::chrono::milliseconds parse_seconds(std::string_view text, std::string_view what);

// How many tasks Slurm's node of this index runs. The text is Slurm's notation: "2(x3),1" are three
// nodes with 2 tasks and one with 1. Nothing if it is not such a text, or has too few nodes.
std::optional<int> slurm_tasks_of_node(std::string_view text, int node);

}  // namespace lockstep::control
