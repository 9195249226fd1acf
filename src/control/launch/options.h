// What `lockstep run` was asked for, as plain values: programs of Lockstep itself, such as `lockstep train`, start jobs with
// them, too, without a command line.
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
  // Where one of these is absent or empty, what the user exported stays, else a default applies.
  std::optional<int> threads;    // per worker, for OpenMP and OpenBLAS; default 1
  std::optional<int> timeout_s;  // LOCKSTEP_TIMEOUT; default join()'s
  std::string
      engine;  // LOCKSTEP_ENGINE, by name: which there are depends on the build; default join()'s choice
  std::optional<DeviceKind> device;  // LOCKSTEP_DEVICE; default join()'s choice

  // How it ends and what is shown.
  std::chrono::milliseconds grace{10'000};  // from a forwarded SIGINT or SIGTERM to SIGKILL
  std::string log_dir;  // rank-3.out and rank-3.err go here as well; empty: nowhere
  bool quiet = false;   // only failures are reported, no notes

  // For programs that are part of Lockstep. Worker 0 gets the launcher's own output, for a progress
  // bar on the terminal; exit codes of worker 0 that the program has explained itself are not
  // reported again; and with one code workers say that all of them have stopped early, in order.
  bool leader_keeps_output = false;
  std::vector<int> explained_codes;
  std::optional<int> stopped_code;
};

// "KEY=VALUE" as a pair. BadInput when there is no '=', when the key is no name of a variable, and
// when it is one that the launcher must set itself, such as RANK.
std::pair<std::string, std::string> parse_variable(const std::string& text);

// BadInput for the first value that is out of range, naming the option and what it takes.
void check(const RunOptions& options);

}  // namespace lockstep::control
