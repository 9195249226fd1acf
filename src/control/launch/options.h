// What a job is to be, as plain values. `lockstep run` reads them from its command line; `lockstep train` makes them
// itself.
#pragma once

#include <lockstep/buffer.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/choice.h"

namespace lockstep::control {

inline constexpr int kMostWorkers = 4096;
inline constexpr int kMostThreads = 4096;

// As LOCKSTEP_DEVICE and --device spell them.
inline constexpr base::Choice<DeviceKind> kDevices[] = {{DeviceKind::kCpu, "cpu"},
                                                        {DeviceKind::kCuda, "cuda"}};

struct RunOptions {
  // What runs.
  int workers = 0;
  std::vector<std::string> command;                            // the program and its arguments
  std::vector<std::pair<std::string, std::string>> variables;  // --env; wins over everything else
  // If one of these is absent or empty, what the user exported counts, else the default.
  std::optional<int> threads;    // per worker, for OpenMP and OpenBLAS; default 1
  std::optional<int> timeout_s;  // LOCKSTEP_TIMEOUT; default join()'s
  // LOCKSTEP_ENGINE; a name, because engines depend on the build; default join()'s choice
  std::string engine;
  std::optional<DeviceKind> device;  // LOCKSTEP_DEVICE; default join()'s choice

  // How it ends and what is shown.
  std::chrono::milliseconds grace{10'000};  // from a forwarded SIGINT or SIGTERM to SIGKILL
  std::string log_dir;  // rank-3.out and rank-3.err go here as well; empty: nowhere
  bool quiet = false;   // only failures are reported, no notes

  // For programs that are part of Lockstep.
  bool leader_keeps_output = false;  // worker 0 writes to the launcher's own output: a progress bar
  std::vector<int>
      explained_codes;              // of worker 0; it has told the reason, so the launcher does not
  std::optional<int> stopped_code;  // says that all workers have stopped early, in order
};

// "KEY=VALUE" as a pair. BadInput if there is no '=', if the key is no name of a variable, and if the
// launcher sets that variable itself, such as RANK.
std::pair<std::string, std::string> parse_variable(const std::string& text);

// BadInput for the first value that is out of range, naming the option and what it takes.
void check(const RunOptions& options);

}  // namespace lockstep::control
