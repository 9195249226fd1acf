// What a job is to be, as plain values. `lockstep run` reads them from its command line; `lockstep train` makes them
// itself.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/comm.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/choice.h"
#include "control/launch/binding.h"

namespace lockstep::control {

inline constexpr int kMostWorkers = 4096;
inline constexpr int kMostThreads = 4096;
inline constexpr int kMostHosts = 1024;

class JobEvents;

// As LOCKSTEP_DEVICE and --device spell them.
inline constexpr base::Choice<DeviceKind> kDevices[] = {{DeviceKind::kCpu, "cpu"},
                                                        {DeviceKind::kCuda, "cuda"}};

// As LOCKSTEP_WIRE and --wire spell them.
inline constexpr base::Choice<Wire> kWires[] = {
    {Wire::kAuto, "auto"}, {Wire::kPlain, "plain"}, {Wire::kTagged, "tagged"}};

// Never asks for a password: it could not be typed. Notices a host that is gone after some seconds.
inline constexpr const char* kRemoteShell =
    "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=2 -o "
    "ServerAliveCountMax=3";

// Where the launchers of a job on several hosts meet.
struct NodeOptions {
  int nodes = 1;
  int rank = 0;             // of this host
  std::string rendezvous;   // HOST:PORT of node 0
  std::string secret_file;  // the same on every host
  std::string join;         // HOST:PORT of node 0 of a job that runs: this host joins it
  // Standard input holds the secret, then bytes that are signals. Its end asks for the end of the job. All hosts have
  // one terminal, so a failure is told once. See remote.h.
  bool lifeline = false;
};

// Whether the job is on this host only, and stays so. With a rendezvous other hosts may join it later.
inline bool one_host(const NodeOptions& nodes) {
  return nodes.nodes == 1 && nodes.join.empty() && (nodes.rendezvous.empty() || nodes.lifeline);
}

// `--hosts`: this command starts the launchers of other hosts, and is none itself (remote.h).
struct HostOptions {
  std::string list;                  // "node0:4,user@node1:4"; empty: not asked for
  std::string shell = kRemoteShell;  // its words, in front of the host and the command there
  std::string lockstep;              // the path of `lockstep` on every host; empty: as here
};

struct RunOptions {
  // What runs.
  int workers = 0;  // at the start
  std::optional<int>
      most_workers;  // to which the job can be resized; default: as many as at the start
  std::vector<std::string> command;  // the program and its arguments
  bool began_before = false;         // the job begins again: it goes on from its own checkpoint
  std::vector<std::pair<std::string, std::string>> variables;  // --env; wins over everything else
  // If one of these is absent or empty, what the user exported counts, else the default.
  std::optional<int> threads;    // per worker, for OpenMP and OpenBLAS; default 1
  std::optional<int> timeout_s;  // LOCKSTEP_TIMEOUT; default join()'s
  // LOCKSTEP_ENGINE; a name, because engines depend on the build; default join()'s choice
  std::string engine;
  std::optional<DeviceKind> device;  // LOCKSTEP_DEVICE; default join()'s choice
  std::optional<Wire> wire;          // LOCKSTEP_WIRE; default join()'s choice
  Bind bind = Bind::kAuto;
  // Workers that die are replaced, and the job goes on, if one of these two is given.
  std::optional<int> min_workers;   // below this many the job ends; default 1
  std::optional<int> max_restarts;  // within 10 minutes; default 10
  // Then a worker that others wait for in vain is replaced, too. Default: 30 s, or 10 steps if they take longer.
  std::optional<double> step_timeout_s;
  // LOCKSTEP_FAULTS and LOCKSTEP_FAULT_SEED (control/fault_schedule.h); default what the user exported.
  std::string faults;
  std::optional<std::int64_t> fault_seed;
  NodeOptions nodes;
  HostOptions hosts;

  // How it ends and what is shown.
  std::chrono::milliseconds grace{10'000};  // from a forwarded SIGINT or SIGTERM to SIGKILL
  std::string log_dir;  // rank-3.out and rank-3.err go here as well; empty: nowhere
  bool quiet = false;   // only failures are reported, no notes
  std::string report;   // a file for the caller to write; empty: none
  // When nothing of the job is left: what has happened to it. Only on node 0.
  std::function<void(const JobEvents&)> when_over;

  // For programs that are part of Lockstep.
  std::string command_name = "run";  // of `lockstep`
  // Several hosts only. Node 0 calls it when all workers are counted. It makes the choices that depend on their number,
  // for every node: the other nodes take its command's arguments and its variables.
  std::function<void(RunOptions&, int world)> settle;
  bool leader_keeps_output = false;  // worker 0 writes to the launcher's own output: a progress bar
  std::vector<int>
      explained_codes;              // of worker 0; it has told the reason, so the launcher does not
  std::optional<int> stopped_code;  // says that all workers have stopped early, in order
};

// How many workers there may be at a time: each has a place, from 0 on.
inline int places(const RunOptions& options) {
  return options.most_workers.value_or(options.workers);
}

// Whether workers may leave and be replaced.
inline bool elastic(const RunOptions& options) {
  return options.min_workers || options.max_restarts;
}
inline constexpr int kMinWorkers = 1;
inline constexpr int kMaxRestarts = 10;
inline constexpr double kStepTimeout = 30;

// What -n says: a number, or MIN:MAX.
struct WorkersAsked {
  int least = 0;
  std::optional<int> most;  // nothing: exactly `least`

  // How many to start on a host that has room for so many.
  int start_with(int room) const { return most ? std::clamp(room, least, *most) : least; }
};

// Nothing if it is neither of the two. BadInput, naming the option, if MIN:MAX cannot be.
std::optional<WorkersAsked> parse_workers(const std::string& option, const std::string& text);

// "KEY=VALUE" as a pair. BadInput if there is no '=', if the key is no name of a variable, and if the
// launcher sets that variable itself, such as RANK.
std::pair<std::string, std::string> parse_variable(const std::string& text);

// The faults on purpose of this job, as LOCKSTEP_FAULTS: of --env, else of --faults, else what was exported. Empty: none.
std::string faults_of(const RunOptions& options);

// BadInput for the first value that is out of range, naming the option and what it takes.
void check(const RunOptions& options);

}  // namespace lockstep::control
