// `lockstep bench step`.
#pragma once

#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"

namespace lockstep::bench {

int bench_step(const std::vector<std::string>& arguments);

// Peers where workers host several shards.
inline constexpr char kPlainAccumulate[] = "plain-accumulate";
inline constexpr char kPlainAccumulateFlat[] = "plain-accumulate-flat";

// The Trainer without its divergence check, a peer in any case.
inline constexpr char kUnchecked[] = "unchecked";

// Peers and engines, for these arguments. Unavailable in a build without LibTorch.
Field step_field(const StepArguments& arguments);

// MODEL BATCH OPTIMIZER SECONDS STEPS DEVICE PRECISION GPT_SIZE CONTEXT, as every worker takes them.
std::vector<std::string> step_job_words(const StepArguments& arguments);

// Threads of each worker: its part of the cores.
int threads_of_a_worker(int workers);

// The results of one system.
struct StepResult {
  std::string system;
  std::string settings;
  std::vector<double> step_ms;   // of all workers and runs
  std::vector<double> pss_mb;    // of all workers together, for each run
  std::vector<double> state_mb;  // the same

  // Adds what the workers of one run printed. std::exception for lines that cannot be understood, and where there are
  // none; some of the run may then have been added.
  void add(const std::vector<std::string>& lines);
};

struct StepReport {
  int workers = 0;
  int shards = 0;  // at least as many
  int threads = 1;
  std::string model;
  std::int64_t batch = 0;  // of each shard
  std::string optimizer;
  std::int64_t bucket_bytes = 0;
  std::vector<StepResult> results;  // of those that never failed
};

std::string as_json(const StepReport& report);
std::string as_table(const StepReport& report);
std::string as_plot(const StepReport& report);

}  // namespace lockstep::bench
