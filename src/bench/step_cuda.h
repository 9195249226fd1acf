// `lockstep bench step --device cuda`: training steps on GPUs, by the GPU's own clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"

namespace lockstep::bench {

// One way of training, and the system whose time its own is divided by.
struct CudaSystem {
  const char* name;
  const char* base;  // "": none
  bool ours;
  bool deterministic;  // the same bits in every run; both sides set the same switches
  bool alone;          // makes sense with one worker only
  const char* settings;
};
std::span<const CudaSystem> cuda_systems();
const CudaSystem* cuda_system(const std::string& name);  // null: there is none

// What was found on this host. A problem says why something was not found.
struct CudaHost {
  std::string program;  // lockstep-train
  std::string program_problem;
  std::string python;  // a Python whose PyTorch sees a GPU
  std::string script;  // lockstep_bench_cuda.py
  std::string python_problem;
};

// Looks for what the arguments ask for. This takes some seconds.
CudaHost look_for_cuda(const StepArguments& arguments);

// Peers that are not on this host are left out. Throws BadInput for a system that does not exist;
// Unavailable if one of ours was asked for and cannot run.
Field cuda_field(const StepArguments& arguments, const CudaHost& host);

// The results of one system.
struct CudaStepResult {
  std::string system;
  std::string settings;
  std::vector<double> step_ms;                     // of all workers and runs
  std::vector<double> run_ms;                      // the median of each run
  std::optional<std::int64_t> buckets;             // reduced in a step: one reduction each
  std::optional<std::int64_t> buckets_before_end;  // those reduced before the last gradient
  std::optional<std::int64_t> graph_shards;        // shards of a run that ran as CUDA graphs
  std::optional<std::int64_t> eager_shards;        // shards of a run that did not
  std::string eager_reason;                        // why some did not; empty: none, or not known

  // Adds what the workers of one run printed. Throws std::exception for lines that it does not
  // understand, and if there are none. Some lines of the run may have been added then.
  void add(const std::vector<std::string>& lines);
};

struct CudaStepReport {
  StepArguments arguments;
  std::vector<CudaStepResult> results;  // of systems that never failed
};

std::string as_json(const CudaStepReport& report);
std::string as_table(const CudaStepReport& report);
std::string as_plot(const CudaStepReport& report);

int bench_cuda_step(const StepArguments& arguments);

}  // namespace lockstep::bench
