#include "app/bench/allreduce.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <stdlib.h>

#include <filesystem>
#include <system_error>

#include "app/bench/allreduce/measure.h"
#include "app/bench/allreduce/worker.h"
#include "app/bench/command.h"
#include "app/bench/cores.h"
#include "app/bench/rounds.h"
#include "base/files.h"
#include "control/launch/program.h"

namespace lockstep::bench {
namespace {

// A folder of our own, gone with us.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    path_ = (std::filesystem::temp_directory_path(error) / "lockstep-bench-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr)
      throw Unavailable(fmt::format("cannot make a folder such as {}", path_));
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> with_words(std::vector<std::string> command,
                                    const AllreduceArguments& arguments) {
  const auto words = measure_words({arguments.sizes, arguments.seconds, arguments.iterations});
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

Contender own_worker(const AllreduceArguments& arguments, const std::string& name,
                     const std::string& engine, const std::string& kind) {
  Launch launch{arguments.workers, 1, engine, {}};
  launch.command =
      with_words({base::link_target("/proc/self/exe"), "bench-worker", kind}, arguments);
  return {name, true, launched(launch), allocator_settings()};
}

// An MPI: the program that was built with its compiler wrapper, and its way to start it.
struct Mpi {
  const char* name;
  const char* launcher;
  const char* package;
  std::vector<std::string> options;
};

const std::vector<Mpi>& mpis() {
  static const std::vector<Mpi> list = {
      {"openmpi",
       "mpirun.openmpi",
       "libopenmpi-dev",
       {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1",
        "--mca", "btl", "self,vader"}},
      {"mpich", "mpiexec.mpich", "libmpich-dev", {"-bind-to", "none"}},
  };
  return list;
}

void add_mpi(const Mpi& mpi, const AllreduceArguments& arguments, Field& field) {
  const char* path = ::getenv("PATH");
  const auto launcher = control::find_program(mpi.launcher, path != nullptr ? path : "/usr/bin");
  const std::string program = own_file(fmt::format("lockstep-bench-{}", mpi.name));
  if (program.empty() || launcher.path.empty()) {
    field.left_out.push_back(fmt::format("{}: not found; install {}{}", mpi.name, mpi.package,
                                         program.empty() ? " and build again" : ""));
    return;
  }
  std::vector<std::string> command = {launcher.path, "-n", std::to_string(arguments.workers)};
  command.insert(command.end(), mpi.options.begin(), mpi.options.end());
  command.push_back(program);
  field.contenders.push_back(
      {mpi.name, false, with_words(command, arguments), allocator_settings()});
}

}  // namespace

Field allreduce_field(const AllreduceArguments& arguments, const std::string& folder) {
  std::vector<std::string> known = {"gloo"};
  for (const Mpi& mpi : mpis()) known.emplace_back(mpi.name);
  check_peers(arguments.peers, known);
  Field field;
  for (const std::string& engine : chosen_engines(arguments.engines))
    field.contenders.push_back(own_worker(arguments, "lockstep-" + engine, engine, "engine"));
  if (asked_for(arguments.peers, "gloo")) {
    if (gloo_peer_built()) {
      field.contenders.push_back(own_worker(arguments, "gloo", "gloo", "gloo:" + folder));
      field.contenders.back().ours = false;
    } else {
      field.left_out.emplace_back("gloo: not found; install libgloo-dev and build again");
    }
  }
  for (const Mpi& mpi : mpis()) {
    if (asked_for(arguments.peers, mpi.name)) add_mpi(mpi, arguments, field);
  }
  field.contenders.push_back(own_worker(arguments, "limit", "shm", "limit"));
  return field;
}

int bench_allreduce(const std::vector<std::string>& words) {
  const AllreduceArguments arguments = parse_allreduce_arguments(words);
  const TemporaryFolder folder;
  const Field field = allreduce_field(arguments, folder.path());
  announce(arguments, field);
  AllreduceReport report;
  report.workers = arguments.workers;
  for (const Contender& contender : field.contenders) report.results.push_back({contender.name});
  const bool good =
      run_rounds(field.contenders, arguments.rounds,
                 [&](std::size_t i, const auto& lines) { report.results[i].add(lines); });
  std::erase_if(report.results, [](const AllreduceResult& one) { return one.samples.empty(); });
  finish(arguments, {as_json(report), as_table(report), as_plot(report)});
  return good ? 0 : 1;
}

}  // namespace lockstep::bench
