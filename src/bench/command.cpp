#include "bench/command.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cstdlib>

#include "base/atomic_file.h"
#include "base/choice.h"
#include "bench/allreduce.h"
#include "bench/faults_bench.h"
#include "bench/hosts_bench.h"
#include "bench/measure/cores.h"
#include "bench/process.h"
#include "bench/step.h"

namespace lockstep::bench {
namespace {

struct Benchmark {
  const char* name;
  const char* help;
  int (*run)(const std::vector<std::string>&);
};
const Benchmark kBenchmarks[] = {{"allreduce", kAllreduceHelp, bench_allreduce},
                                 {"step", kStepHelp, bench_step},
                                 {"hosts", kHostsHelp, bench_hosts},
                                 {"faults", kFaultsHelp, bench_faults}};

}  // namespace

int bench(const std::vector<std::string>& words) {
  for (const Benchmark& benchmark : kBenchmarks) {
    if (words.empty() || words.front() != benchmark.name) continue;
    if (base::asks_for_help(words)) {
      fmt::print("{}", benchmark.help);
      return 0;
    }
    try {
      return benchmark.run({words.begin() + 1, words.end()});
    } catch (const Interrupted& interrupted) {
      return 128 + interrupted.signal;
    }
  }
  if (base::asks_for_help(words)) {
    fmt::print("{}", kBenchHelp);
    return 0;
  }
  throw BadInput(
      "bench what? try `lockstep bench allreduce`, `lockstep bench step`, `lockstep bench hosts` "
      "or "
      "`lockstep bench faults`, or see `lockstep bench --help`");
}

void announce(const CommonArguments& arguments, const Field& field) {
  const int cores = static_cast<int>(allowed_cores().size());
  if (arguments.workers > cores) {
    fmt::print(
        stderr,
        "lockstep: {} workers share {} cores: a worker that waits by spinning takes time from "
        "others, and the numbers say more about the scheduler than about the systems\n",
        arguments.workers, cores);
  }
  double load = 0;
  if (::getloadavg(&load, 1) == 1 && load >= 1) {
    fmt::print(
        stderr,
        "lockstep: the load of the last minute is {:.1f}: whatever else runs here is measured "
        "too\n",
        load);
  }
  for (const std::string& line : field.left_out) fmt::print(stderr, "lockstep: without {}\n", line);
}

void finish(const CommonArguments& arguments, const Output& output) {
  if (!arguments.plot.empty()) base::write_file(arguments.plot, output.plot);
  if (!arguments.save.empty()) base::write_file(arguments.save, output.json);
  fmt::print("{}", arguments.json ? output.json : output.table);
}

}  // namespace lockstep::bench
