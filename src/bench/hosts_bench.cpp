#include "bench/hosts_bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/environment.h"
#include "bench/allreduce/measure.h"
#include "bench/allreduce/worker.h"
#include "bench/command.h"
#include "bench/hosts/hosts.h"
#include "bench/measure/cores.h"
#include "bench/step.h"
#include "bench/temporary_folder.h"
#include "control/launch/program.h"
#include "control/rendezvous/secret.h"

namespace lockstep::bench {
namespace {

constexpr char kSockets[] = "sockets";
constexpr char kSocketsSpin[] = "sockets-spin";
constexpr char kPlainWorkers[] = "plain";
constexpr char kDdp[] = "pytorch-ddp";
constexpr char kGlooRing[] = "gloo";
constexpr char kOpenMpi[] = "openmpi";
constexpr char kKeyVariable[] = "LOCKSTEP_BENCH_HOSTS";

// A secret in memory that only this user can open: nothing is left of it.
base::Fd secret_file() {
  base::Fd file(::memfd_create("lockstep-bench-secret", MFD_CLOEXEC));
  const std::string secret = control::make_secret();
  if (!file || ::fchmod(file.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()))
    throw Unavailable("cannot hold a secret in a memory file");
  return file;
}

// The hosts, and what their workers need to find each other.
class HostsRun {
 public:
  HostsRun(const HostsArguments& arguments)
      : arguments_(arguments),
        hosts_({.count = arguments.hosts,
                .rate = fmt::format("{:.0f}bit", arguments.rate),
                .mtu = arguments.mtu}),
        secret_(secret_file()) {}

  int workers() const { return arguments_.hosts * arguments_.workers; }

  // All workers of a run, as programs in their hosts.
  std::vector<Program> programs(const std::vector<std::string>& command,
                                const Program::Variables& more) {
    ++runs_;
    std::vector<Program> all;
    for (int rank = 0; rank < workers(); ++rank) {
      const int host = rank / arguments_.workers;
      Program program{command, variables_of(rank), SIGKILL,
                      [this, host] { return hosts_.enter(host); }};
      program.variables.insert(program.variables.end(), more.begin(), more.end());
      all.push_back(std::move(program));
    }
    return all;
  }

  // An MPI's launcher, which starts the workers of all hosts from the first.
  Contender mpi(const std::string& name, const std::string& settings,
                const std::vector<std::string>& command) {
    Contender made{name, false, settings, command, {}};
    made.workers = [this, command] {
      Program::Variables variables = allocator_settings();
      variables.emplace_back(kKeyVariable, hosts_.key());
      return std::vector<Program>{
          {command, variables, SIGTERM, [this] { return hosts_.enter(0); }}};
    };
    return made;
  }

  Contender contender(const std::string& name, bool ours, const std::string& settings,
                      const std::vector<std::string>& command, const Program::Variables& more) {
    Contender made{name, ours, settings, command, {}};
    made.workers = [this, command, more] { return programs(command, more); };
    return made;
  }

 private:
  // Those of torchrun, too, for PyTorch and Gloo.
  Program::Variables variables_of(int rank) const {
    const int host = rank / arguments_.workers;
    const std::string threads = std::to_string(threads_of_a_worker(workers()));
    Program::Variables variables = {
        {"RANK", std::to_string(rank)},
        {"WORLD_SIZE", std::to_string(workers())},
        {"LOCAL_RANK", std::to_string(rank % arguments_.workers)},
        {"LOCAL_WORLD_SIZE", std::to_string(arguments_.workers)},
        {"LOCKSTEP_RENDEZVOUS", fmt::format("{}:29400", Hosts::address(0))},
        {"LOCKSTEP_SECRET_FILE", fmt::format("/proc/{}/fd/{}", ::getpid(), secret_.get())},
        {"LOCKSTEP_TIMEOUT", "120"},
        {"MASTER_ADDR", Hosts::address(0)},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", fmt::format("run-{}", runs_)},
        {"GLOO_SOCKET_IFNAME", "eth0"},
        {kAddressVariable, Hosts::address(host)},
        {"OMP_NUM_THREADS", threads},
        {"OPENBLAS_NUM_THREADS", threads}};
    const auto& memory = allocator_settings();
    variables.insert(variables.end(), memory.begin(), memory.end());
    return variables;
  }

  const HostsArguments& arguments_;
  Hosts hosts_;
  base::Fd secret_;
  int runs_ = 0;
};

std::vector<std::string> reduce_command(const HostsArguments& arguments, const std::string& kind,
                                        std::size_t bytes) {
  std::vector<std::string> command = {control::own_program(), "bench-worker", kind};
  const auto words = measure_words({{bytes}, arguments.seconds, arguments.iterations});
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

constexpr char kTags[] =
    "bit-stable, in two levels where a host has several workers; a tag with every frame; pinned";
constexpr char kNoTags[] = "the same without tags; pinned";

struct Task {
  HostsSection section;
  Field field;
};

// Two workers of this host.
Task loopback_task(const HostsArguments& arguments, std::size_t bytes) {
  Task task;
  task.section = {.name = "loopback",
                  .title = fmt::format("all-reduce of {} of float32 over the loopback, 2 workers",
                                       spoken_size(bytes)),
                  .unit = "µs",
                  .bytes = bytes,
                  .bases = {kSockets, kSocketsSpin},
                  .least = 0,
                  .results = {}};
  const auto add = [&](const char* name, const char* engine, const std::string& kind,
                       const char* wire, const std::string& settings) {
    Program::Variables variables = allocator_settings();
    variables.emplace_back("LOCKSTEP_WIRE", wire);
    task.field.contenders.push_back(
        {name, true, settings, launched({2, 1, engine, reduce_command(arguments, kind, bytes)}),
         variables});
  };
  add("lockstep", "tcp", "engine", "tagged", kTags);
  add("lockstep-plain", "tcp", "engine", "plain", kNoTags);
  if (asked_for(arguments.peers, kSockets)) {
    add(kSockets, "shm", "sockets:1", "auto", "TCP sockets in the same pattern, poll(); pinned");
    add(kSocketsSpin, "shm", "sockets-spin:1", "auto",
        "the same; spins before it sleeps, as the engine does; pinned");
  }
  return task;
}

std::string spoken_places(const HostsArguments& arguments) {
  return fmt::format("{} hosts × {} workers, {} each way", arguments.hosts, arguments.workers,
                     arguments.rate_text);
}

// OpenMPI as its users run it on Ethernet. Workers sleep a little while they wait, because they
// share the cores.
void add_openmpi(const HostsArguments& arguments, HostsRun& run, std::size_t bytes, Task& task) {
  const auto launcher =
      control::find_program("mpirun.openmpi", base::environment("PATH").value_or("/usr/bin"));
  const std::string program = control::own_file("lockstep-bench-openmpi");
  if (program.empty() || launcher.path.empty()) {
    task.field.left_out.emplace_back(
        "openmpi: not found; install libopenmpi-dev and openmpi-bin, and build again");
    return;
  }
  std::string places;
  for (int host = 0; host < arguments.hosts; ++host)
    places += fmt::format("{}{}:{}", host == 0 ? "" : ",", Hosts::address(host), arguments.workers);
  const std::vector<std::string> options = {"--mca", "pml", "ob1",
                                            "--mca", "btl", "self,vader,tcp"};
  std::vector<std::string> command = {launcher.path,
                                      "-n",
                                      std::to_string(run.workers()),
                                      "--allow-run-as-root",
                                      "--oversubscribe",
                                      "--bind-to",
                                      "none",
                                      "--host",
                                      places,
                                      "--mca",
                                      "plm",
                                      "rsh",
                                      "--mca",
                                      "plm_rsh_agent",
                                      control::own_program() + " bench-enter",
                                      "--mca",
                                      "btl_tcp_if_include",
                                      "eth0",
                                      "--mca",
                                      "oob_tcp_if_include",
                                      "eth0"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(program);
  const auto words = measure_words({{bytes}, arguments.seconds, arguments.iterations});
  command.insert(command.end(), words.begin(), words.end());
  task.field.contenders.push_back(run.mpi(
      kOpenMpi, fmt::format("{}, then pinned by itself", fmt::join(options, " ")), command));
}

Task reduce_task(const HostsArguments& arguments, HostsRun& run, const std::string& folder,
                 std::size_t bytes) {
  Task task;
  task.section = {.name = "allreduce",
                  .title = fmt::format("all-reduce of {} of float32, {}", spoken_size(bytes),
                                       spoken_places(arguments)),
                  .unit = "µs",
                  .bytes = bytes,
                  .bases = {kSockets, kGlooRing, kOpenMpi},
                  .least = least_time(bytes, arguments.hosts, arguments.rate),
                  .results = {}};
  auto& contenders = task.field.contenders;
  const auto command = [&](const std::string& kind) {
    return reduce_command(arguments, kind, bytes);
  };
  contenders.push_back(run.contender("lockstep", true, kTags, command("engine"), {}));
  contenders.push_back(run.contender("lockstep-plain", true, kNoTags, command("engine"),
                                     {{"LOCKSTEP_WIRE", "plain"}}));
  if (asked_for(arguments.peers, kSockets))
    contenders.push_back(
        run.contender(kSockets, true,
                      "TCP sockets: only what must cross the network, nothing between workers of "
                      "a host; pinned",
                      command(fmt::format("sockets:{}", arguments.workers)), {}));
  if (!folder.empty())
    contenders.push_back(run.contender(
        kGlooRing, false, "ring in chunks (Gloo's default) over all workers; not pinned",
        command("gloo:" + folder), {}));
  if (asked_for(arguments.peers, kOpenMpi)) add_openmpi(arguments, run, bytes, task);
  return task;
}

StepArguments step_arguments(const HostsArguments& arguments, const std::string& model,
                             int workers) {
  StepArguments step;
  static_cast<CommonArguments&>(step) = arguments;
  step.model = model;
  step.batch = arguments.batch;
  step.optimizer = "sgd-momentum";
  step.precision = "float32";
  step.gpt_size = "tiny";
  step.context = 128;
  step.workers = step.shards = workers;
  return step;
}

Task step_task(const HostsArguments& arguments, HostsRun& run, const std::string& model) {
  Task task;
  task.section = {.name = model,
                  .title = fmt::format("training steps of {}, batch {} each, sgd-momentum, {}",
                                       model, arguments.batch, spoken_places(arguments)),
                  .unit = "ms",
                  .bytes = 0,
                  .bases = {kPlainWorkers, kDdp},
                  .least = 0,
                  .results = {}};
  const auto words = step_job_words(step_arguments(arguments, model, run.workers()));
  const std::string program = control::own_file("lockstep-train");
  if (program.empty())
    throw Unavailable(
        "this build of Lockstep has no LibTorch layer, which steps need: install libtorch-dev and "
        "build again, or leave them out with --rows loopback,allreduce");
  const auto add = [&](const char* name, bool ours, const char* settings,
                       std::vector<std::string> command) {
    command.insert(command.end(), words.begin(), words.end());
    task.field.contenders.push_back(run.contender(name, ours, settings, command, {}));
  };
  const auto own = [&](const char* system) -> std::vector<std::string> {
    return {program, "bench-step", system, std::to_string(run.workers())};
  };
  if (asked_for(arguments.peers, kPlainWorkers))
    add(kPlainWorkers, true, "LibTorch and torch::optim, workers that never talk; pinned",
        own("plain"));
  add("lockstep", true, "data_parallel and lockstep::optim; tags; pinned", own("drop-in"));
  add("lockstep-fused", true, "lockstep::Trainer; tags; pinned", own("trainer"));
  const std::string python = asked_for(arguments.peers, kDdp) ? python_with_torch() : "";
  const std::string script = control::own_file("lockstep_bench_ddp.py");
  if (!python.empty() && !script.empty())
    add(kDdp, false, "PyTorch's DistributedDataParallel over Gloo; pinned", {python, script});
  else if (asked_for(arguments.peers, kDdp))
    task.field.left_out.emplace_back("pytorch-ddp: not found; install python3-torch");
  return task;
}

std::vector<Task> tasks_of(const HostsArguments& arguments, std::optional<HostsRun>& run,
                           const std::string& folder) {
  std::vector<Task> tasks;
  for (const std::string& row : arguments.rows) {
    if (row == "loopback") {
      for (const std::size_t bytes : arguments.loopback_sizes)
        tasks.push_back(loopback_task(arguments, bytes));
    } else if (row == "allreduce") {
      for (const std::size_t bytes : arguments.sizes)
        tasks.push_back(reduce_task(arguments, *run, folder, bytes));
    } else {
      tasks.push_back(step_task(arguments, *run, row));
    }
  }
  return tasks;
}

}  // namespace

int enter_host(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 ||
      !Hosts::enter_with(base::environment(kKeyVariable).value_or(""), arguments.front()))
    throw BadInput("bench-enter is started by `lockstep bench hosts`");
  std::string words;
  for (std::size_t i = 1; i < arguments.size(); ++i) words += arguments[i] + " ";
  ::execl("/bin/sh", "sh", "-c", words.c_str(), nullptr);
  throw Unavailable("cannot start /bin/sh");
}

int bench_hosts(const std::vector<std::string>& words) {
  const HostsArguments arguments = parse_hosts_arguments(words);
  check_names("--peers", arguments.peers, {kSockets, kGlooRing, kOpenMpi, kPlainWorkers, kDdp});
  std::optional<HostsRun> run;
  if (arguments.rows != std::vector<std::string>{"loopback"}) run.emplace(arguments);
  std::optional<TemporaryFolder> folder;  // only if it is needed, because a kill leaves it behind
  const bool reduces =
      std::find(arguments.rows.begin(), arguments.rows.end(), "allreduce") != arguments.rows.end();
  if (reduces && asked_for(arguments.peers, kGlooRing) && gloo_peer_built()) folder.emplace();
  std::vector<Task> tasks = tasks_of(arguments, run, folder ? folder->path() : "");
  HostsArguments all = arguments;
  all.workers = run ? run->workers() : 2;
  Field left_out;
  if (reduces && asked_for(arguments.peers, kGlooRing) && !folder)
    left_out.left_out.emplace_back("gloo: not found; install libgloo-dev and build again");
  announce(all, left_out);
  std::vector<HostsSection> sections;
  bool good = true;
  for (Task& task : tasks) {
    fmt::print(stderr, "{}\n", task.section.title);
    for (const std::string& line : task.field.left_out)
      fmt::print(stderr, "lockstep: without {}\n", line);
    for (const Contender& contender : task.field.contenders)
      task.section.results.push_back({contender.name, contender.settings, {}});
    good = run_rounds(task.field.contenders, {arguments.rounds, longest_run(arguments)},
                      task.section.results) &&
           good;
    sections.push_back(std::move(task.section));
  }
  finish(arguments, {as_json(sections), as_table(sections), ""});
  return good ? 0 : 1;
}

}  // namespace lockstep::bench
