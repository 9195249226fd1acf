// The `lockstep` command.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <boost/system/system_error.hpp>

#include <exception>
#include <string>
#include <vector>

#include "app/doctor/doctor.h"
#include "app/hosts/arguments.h"
#include "app/jobs.h"
#include "app/report/job_report.h"
#include "app/run_arguments.h"
#include "app/train/launch.h"
#include "base/choice.h"
#include "base/diagnosis.h"
#include "base/standard_output.h"
#include "bench/allreduce/worker.h"
#include "bench/command.h"
#include "bench/hosts_bench.h"
#include "control/launch/remote.h"

namespace lockstep::app {
namespace {

constexpr int kUsage = 2;

constexpr char kHelp[] = R"(Lockstep: data-parallel training for C++.

  lockstep run -n 4 -- ./train --epochs 3   start 4 workers on this host
  lockstep run --hosts a:4,b:4 -- ./train   4 on each of two hosts, by ssh
  lockstep train --model cnn                train one of the models that are built in
  lockstep jobs                             your jobs here; also: lockstep resize JOB N, lockstep stop JOB
  lockstep bench allreduce                  measure this machine, beside Gloo, MPI and PyTorch
  lockstep doctor                           what this host can do, and what is slow about it

  lockstep run --help                       the options of a command
  lockstep --version
)";

int run(const std::vector<std::string>& arguments) {
  // Only words before the program are ours: `lockstep run -n 2 ./train --help` asks the program.
  if (base::asks_for_help(split_command(arguments).own)) {
    fmt::print("{}", kRunHelp);
    return 0;
  }
  control::RunOptions options = parse_run_arguments(arguments);
  if (options.hosts.list.empty()) return run_with_report(std::move(options), ReportPart::kWhole);
  control::RemoteWords words{words_for_hosts(split_command(arguments).own), options.command};
  words.before.insert(words.before.begin(), "run");
  words.after.insert(words.after.begin(), "--");
  return control::run_on_hosts(options, words);
}

int dispatch(std::vector<std::string> arguments) {
  if (arguments.empty())
    throw BadInput("no command; try `lockstep run -n 2 -- ./train`, or `lockstep --help`");
  const std::string command = arguments.front();
  arguments.erase(arguments.begin());
  if (command == "run") return run(arguments);
  if (command == "train") return train(arguments);
  if (command == "doctor") return doctor(arguments);
  if (command == "jobs") return list_jobs(arguments);
  if (command == "resize") return resize_job(arguments);
  if (command == "stop") return stop_job(arguments);
  if (command == "bench") return bench::bench(arguments);
  if (command == "bench-worker") return bench::allreduce_worker(arguments);  // for bench itself
  if (command == "bench-enter") return bench::enter_host(arguments);         // the same
  if (command == "--version") {
    fmt::print("lockstep {}\n", LOCKSTEP_VERSION);
    return 0;
  }
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", kHelp);
    return 0;
  }
  throw BadInput(fmt::format(
      "unknown command {}; try run, train, jobs, bench or doctor, or see `lockstep --help`",
      command));
}

}  // namespace
}  // namespace lockstep::app

int main(int argc, char** argv) {
  try {
    const int code = lockstep::app::dispatch({argv + 1, argv + argc});
    lockstep::base::check_said();
    return code;
  } catch (const lockstep::BadInput& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return lockstep::app::kUsage;
  } catch (const boost::system::system_error& error) {
    // Asio throws it. In Boost 1.74 it is no std::system_error, so diagnosis() would call it a bug.
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", lockstep::base::diagnosis(error));
    return 1;
  }
}
