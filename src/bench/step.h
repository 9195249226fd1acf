// `lockstep bench step`.
#pragma once

#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"

namespace lockstep::bench {

int bench_step(const std::vector<std::string>& arguments);

// Plain workers that meet once per step and exchange nothing: what waiting for the slowest worker
// costs. For runs in which every worker hosts one shard.
inline constexpr char kPlainBarrier[] = "plain-barrier";

// Peers for runs in which workers host several shards.
inline constexpr char kPlainAccumulate[] = "plain-accumulate";
inline constexpr char kPlainAccumulateFlat[] = "plain-accumulate-flat";

// The Trainer without its divergence check; a peer in all runs.
inline constexpr char kUnchecked[] = "unchecked";

// The peers and engines that these arguments ask for. Throws Unavailable in a build without
// LibTorch.
Field step_field(const StepArguments& arguments);

// The arguments of every worker: MODEL BATCH OPTIMIZER SECONDS STEPS DEVICE PRECISION GPT_SIZE
// CONTEXT BUCKET_BYTES.
std::vector<std::string> step_job_words(const StepArguments& arguments);

// A Python that has PyTorch: Debian's, which another python3 in PATH may hide, or the one in PATH.
// Empty if neither has it.
std::string python_with_torch();

// The results of one system.
struct StepResult {
  std::string system;
  std::string settings;
  std::vector<double> step_ms;   // of all workers and runs
  std::vector<double> pss_mb;    // of all workers together, for each run
  std::vector<double> state_mb;  // the same

  // Adds what the workers of one run printed. Throws std::exception for lines that it does not
  // understand, and if there are none. Some lines of the run may have been added then.
  void add(const std::vector<std::string>& lines);
};

// The results of one row.
struct StepReport {
  int workers = 0;
  int shards = 0;  // at least as many as workers
  int threads = 1;
  std::string model;
  std::int64_t batch = 0;  // of each shard
  std::string optimizer;
  std::int64_t bucket_bytes = 0;
  std::vector<StepResult> results;  // of systems that never failed
};

// Of all rows of a run. There is at least one, and all have the same model, batch and optimizer.
std::string as_json(const std::vector<StepReport>& rows);
std::string as_table(const std::vector<StepReport>& rows);

// Bars of times, or with several rows lines of samples per second.
std::string as_plot(const std::vector<StepReport>& rows);

}  // namespace lockstep::bench
