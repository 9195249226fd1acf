#include "bench/allreduce.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <optional>

#include "base/environment.h"
#include "bench/allreduce/measure.h"
#include "bench/allreduce/worker.h"
#include "bench/command.h"
#include "bench/measure/cores.h"
#include "bench/temporary_folder.h"
#include "control/launch/program.h"

namespace lockstep::bench {
namespace {

std::vector<std::string> with_words(std::vector<std::string> command,
                                    const AllreduceArguments& arguments) {
  const auto words = measure_words({arguments.sizes, arguments.seconds, arguments.iterations});
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

// Over Gloo a worker has a second thread, which spins while the first one holds a lock. If both are
// on one core, they wait for the scheduler's next tick, 4 ms. So such workers may use all cores of
// the benchmark.
constexpr char kFree[] = "not pinned, since its second thread needs room";

Contender own_worker(const AllreduceArguments& arguments, const std::string& name,
                     const std::string& engine, const std::string& kind) {
  Launch launch{arguments.workers, 1, engine, {}};
  launch.command = with_words({control::own_program(), "bench-worker", kind}, arguments);
  return {name, true, "", launched(launch), allocator_settings()};
}

Contender engine_worker(const AllreduceArguments& arguments, const std::string& engine) {
  Contender contender = own_worker(arguments, "lockstep-" + engine, engine, "engine");
  contender.settings = "bit-stable `direct`; pinned";
  return contender;
}

Contender gloo_peer(const AllreduceArguments& arguments, const std::string& folder) {
  Contender contender = own_worker(arguments, "gloo", "thread", "gloo:" + folder);
  contender.ours = false;
  contender.settings =
      fmt::format("ring in chunks (Gloo's default), TCP on the loopback; {}", kFree);
  return contender;
}

// An MPI: the program that was built for it, and how it is started. Copying through shared memory
// was faster than one copy by the kernel (CMA) where this was chosen: 12 ms against 19 ms for 64
// MiB.
struct Mpi {
  const char* name;
  const char* launcher;
  const char* package;
  bool spins;  // it never sleeps, so it is very slow with more workers than cores
  std::vector<std::string> options;
  Program::Variables variables;
};

const std::vector<Mpi>& mpis() {
  static const std::vector<Mpi> list = {
      {"openmpi",
       "mpirun.openmpi",
       "libopenmpi-dev",
       false,
       {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1",
        "--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"},
       {}},
      {"mpich",
       "mpiexec.mpich",
       "mpich and libmpich-dev",
       true,
       {"-bind-to", "none"},
       {{"UCX_TLS", "posix,self"}}},
  };
  return list;
}

void add_mpi(const Mpi& mpi, const AllreduceArguments& arguments, Field& field) {
  const auto launcher =
      control::find_program(mpi.launcher, base::environment("PATH").value_or("/usr/bin"));
  const std::string program = control::own_file(fmt::format("lockstep-bench-{}", mpi.name));
  if (program.empty() || launcher.path.empty()) {
    field.left_out.push_back(fmt::format("{}: not found; install {}{}", mpi.name, mpi.package,
                                         program.empty() ? " and build again" : ""));
    return;
  }
  if (mpi.spins && !arguments.peers &&
      arguments.workers > static_cast<int>(allowed_cores().size())) {
    field.left_out.push_back(
        fmt::format("{0}: its workers spin, and there are more of them than cores; --peers {0} "
                    "runs it all the same",
                    mpi.name));
    return;
  }
  std::vector<std::string> command = {launcher.path, "-n", std::to_string(arguments.workers)};
  command.insert(command.end(), mpi.options.begin(), mpi.options.end());
  command.push_back(program);
  Contender contender{mpi.name, false, "", with_words(command, arguments), allocator_settings()};
  contender.variables.insert(contender.variables.end(), mpi.variables.begin(), mpi.variables.end());
  contender.settings = fmt::format("{}{}{}, then pinned by itself", spoken(mpi.variables),
                                   mpi.variables.empty() ? "" : " ", fmt::join(mpi.options, " "));
  field.contenders.push_back(std::move(contender));
}

// The same pass over shared memory, in two orders of addition.
void add_orders(const AllreduceArguments& arguments, Field& field) {
  const auto add = [&](const char* name, const char* order) {
    field.contenders.push_back(own_worker(arguments, name, "shm", name));
    field.contenders.back().settings =
        fmt::format("one pass over shared memory, added {}; pinned", order);
  };
  add(kInPlaceTree, "in the order of the tree");
  add(kInPlaceRanks, "rank after rank");
}

}  // namespace

Field allreduce_field(const AllreduceArguments& arguments, const std::string& folder) {
  std::vector<std::string> known = {"gloo"};
  for (const Mpi& mpi : mpis()) known.emplace_back(mpi.name);
  check_names("--peers", arguments.peers, known);
  Field field;
  for (const std::string& engine : chosen_engines(arguments.engines))
    field.contenders.push_back(engine_worker(arguments, engine));
  if (asked_for(arguments.peers, "gloo")) {
    if (gloo_peer_built()) {
      field.contenders.push_back(gloo_peer(arguments, folder));
    } else {
      field.left_out.emplace_back("gloo: not found; install libgloo-dev and build again");
    }
  }
  for (const Mpi& mpi : mpis()) {
    if (asked_for(arguments.peers, mpi.name)) add_mpi(mpi, arguments, field);
  }
  if (arguments.order) add_orders(arguments, field);
  const auto add_limit = [&](const char* name, const char* memory) {
    field.contenders.push_back(own_worker(arguments, name, "shm", name));
    field.contenders.back().settings =
        fmt::format("the engine's loop on {}, no synchronisation; pinned", memory);
  };
  add_limit(kLimit, "private memory");
  add_limit(kLimitDirty, "memory that others have just written");
  return field;
}

int bench_allreduce(const std::vector<std::string>& words) {
  const AllreduceArguments arguments = parse_allreduce_arguments(words);
  std::optional<TemporaryFolder> folder;  // only if it is needed, because a kill leaves it behind
  if (asked_for(arguments.peers, "gloo") && gloo_peer_built()) folder.emplace();
  const Field field = allreduce_field(arguments, folder ? folder->path() : "");
  return measure_field(arguments, field, AllreduceReport{arguments.workers, {}});
}

}  // namespace lockstep::bench
