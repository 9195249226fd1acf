#include "app/bench/step/worker.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "app/bench/cores.h"
#include "app/bench/step/job.h"
#include "app/bench/step/loops.h"
#include "app/onednn.h"
#include "base/environment.h"
#include "base/memory_use.h"

namespace lockstep::bench {
namespace {

int number_of(const char* variable, int otherwise) {
  return static_cast<int>(base::environment_number(variable, 0, 1 << 20).value_or(otherwise));
}

void measure_steps(const std::vector<std::string>& words) {
  const StepJob job = parse_step_job(words);
  if (base::environment("LOCKSTEP_ENGINE") != "gloo")
    pin_worker(number_of("RANK", 0), std::max(number_of("WORLD_SIZE", 1), 1));
  at::set_num_threads(std::max(number_of("OMP_NUM_THREADS", 1), 1));
  at::globalContext().setUserEnabledMkldnn(app::kOneDnnIsFast);
  World world = join();
  const StepTimes times = run_steps(job, world);
  world.comm().barrier().wait();  // everybody still holds what it held
  const double pss_mb = static_cast<double>(base::proportional_set_bytes()) / 1e6;
  world.comm().barrier().wait();
  fmt::print("{{\"rank\":{},\"pss_mb\":{:.2f},\"state_mb\":{:.3f},\"step_ms\":[{:.4f}]}}\n",
             world.rank(), pss_mb, times.state_mb, fmt::join(times.ms, ","));
  std::fflush(stdout);
}

}  // namespace

void step_worker(const std::vector<std::string>& words) {
  try {
    measure_steps(words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-train bench-step: {}\n", error.what());
    std::_Exit(1);
  }
  std::_Exit(0);  // taking LibTorch down lasts, and is not measured
}

}  // namespace lockstep::bench
