#include "bench/step/worker.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/environment.h"
#include "base/memory_use.h"
#include "bench/cores.h"
#include "bench/step/bench_job.h"
#include "bench/step/device.h"
#include "bench/step/loops.h"
#include "bench/time_lines.h"
#include "control/device_choice.h"
#include "torch/device/onednn.h"

namespace lockstep::bench {
namespace {

int number_of(const char* variable, int otherwise) {
  return static_cast<int>(base::environment_number(variable, 0, 1 << 20).value_or(otherwise));
}

bool is_deterministic(const StepJob& job) {
  return job.system.ends_with("-deterministic");
}

// Checked before anything else, because without a GPU the error of a world would be about the
// world.
void prepare_device(const StepJob& job) {
  if (!job.on_cuda()) return;
  const std::string problem = problem_with_cuda();
  if (!problem.empty()) throw Unavailable(problem);
  set_cuda_switches(is_deterministic(job));
}

void check_device(const StepJob& job, const World& world) {
  if (control::name(world.device().kind) == job.device) return;
  throw Unavailable(fmt::format("the job is for {}, and this worker's world is on {}", job.device,
                                world.device().text()));
}

nlohmann::json number_or_null(const std::optional<std::int64_t>& number) {
  return number ? nlohmann::json(*number) : nlohmann::json(nullptr);
}

void print_times(int rank, const std::string& facts, const StepTimes& times) {
  for (const std::string& line :
       lines_of_times({fmt::format("\"rank\":{}", rank), facts, "step_ms"}, times.ms)) {
    fmt::print("{}\n", line);
  }
  std::fflush(stdout);
}

std::string cuda_facts(const StepTimes& times) {
  const nlohmann::ordered_json facts = {
      {"buckets", number_or_null(times.buckets)},
      {"buckets_before_end", number_or_null(times.buckets_before_end)},
      {"graph_shards", number_or_null(times.graph_shards)},
      {"eager_shards", number_or_null(times.eager_shards)},
      {"eager_reason", times.eager_reason}};
  const std::string object = facts.dump();
  return object.substr(1, object.size() - 2);  // without its braces
}

void measure_steps(const std::vector<std::string>& words) {
  const StepJob job = parse_step_job(words);
  prepare_device(job);
  if (base::environment("LOCKSTEP_ENGINE") != "gloo")
    pin_worker(number_of("RANK", 0), std::max(number_of("WORLD_SIZE", 1), 1));
  at::set_num_threads(std::max(number_of("OMP_NUM_THREADS", 1), 1));
  at::globalContext().setUserEnabledMkldnn(device::kOneDnnIsFast);
  World world = join();
  check_device(job, world);
  const StepTimes times = run_steps(job, world);
  if (job.on_cuda()) {
    print_times(world.rank(), cuda_facts(times), times);
    world.comm().barrier().wait();
    return;
  }
  world.comm().barrier().wait();  // until here every worker still has its memory
  const double pss_mb = static_cast<double>(base::proportional_set_bytes()) / 1e6;
  world.comm().barrier().wait();
  print_times(world.rank(),
              fmt::format("\"pss_mb\":{:.2f},\"state_mb\":{:.3f}", pss_mb, times.state_mb), times);
}

// Ends the process: with 0, or with 1 and the problem on standard output.
[[noreturn]] void look_for_cuda() {
  const std::string problem = problem_with_cuda();
  if (!problem.empty()) fmt::print("{}\n", problem);
  std::fflush(stdout);
  std::_Exit(problem.empty() ? 0 : 1);
}

}  // namespace

void step_worker(const std::vector<std::string>& words) {
  try {
    if (words == std::vector<std::string>{"look-for-cuda"}) look_for_cuda();
    measure_steps(words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-train bench-step: {}\n", error.what());
    std::_Exit(1);
  }
  std::_Exit(0);  // shutting LibTorch down takes time, which is not measured
}

}  // namespace lockstep::bench
