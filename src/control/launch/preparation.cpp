#include "control/launch/preparation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/environment.h"
#include "base/hash.h"
#include "control/launch/output.h"
#include "control/rendezvous/secret.h"

namespace lockstep::control {
namespace {

constexpr std::array<int, 8> kForwarded = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                           SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

// Descriptors that we open later must not get the number of a standard stream that was closed.
void open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

// Four pipe ends while starting and two logs per worker, one rendezvous connection for each worker of any host, and a
// reserve.
void raise_open_files(const RunOptions& options, const HostMap& map, const rlimit& original) {
  const rlim_t per_worker = options.log_dir.empty() ? 4 : 6;
  const rlim_t needed = static_cast<rlim_t>(places(options)) * per_worker +
                        static_cast<rlim_t>(map.world() + map.nodes()) + 64;
  if (original.rlim_cur >= needed) return;
  if (original.rlim_max < needed) {
    throw Unavailable(fmt::format(
        "{} workers need {} open files and the limit is {}; raise `ulimit -Hn` or start fewer",
        places(options), needed, original.rlim_max));
  }
  rlimit raised = original;
  raised.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

LogFile open_log(const std::filesystem::path& path, bool goes_on) {
  const int mode = O_WRONLY | O_CREAT | O_CLOEXEC | (goes_on ? O_APPEND : O_TRUNC);
  base::Fd file(::open(path.c_str(), mode, 0666));
  if (!file) {
    throw BadInput(fmt::format("--log-dir: cannot write {}: {}; choose another folder",
                               path.string(), std::strerror(errno)));
  }
  return {path.string(), std::move(file)};
}

std::vector<LogFile> open_logs(const RunOptions& options, const HostMap& map) {
  std::vector<LogFile> logs;
  if (options.log_dir.empty()) return logs;
  const std::filesystem::path folder = options.log_dir;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw BadInput(fmt::format("--log-dir: cannot make {}: {}; choose another folder",
                               options.log_dir, error.message()));
  }
  for (const int rank : map.ranks_of(map.node)) {
    logs.push_back(open_log(folder / fmt::format("rank-{}.out", rank), options.began_before));
    logs.push_back(open_log(folder / fmt::format("rank-{}.err", rank), options.began_before));
  }
  return logs;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> strings;
  for (char** text = environ; *text != nullptr; ++text) strings.emplace_back(*text);
  return strings;
}

// The address of node 0 for the other hosts: the interface that the user named, or the host of --rendezvous.
Listener listen_for_workers(const RunOptions& options) {
  const std::string interface_name = interface_of(options);
  const Address meeting = parse_address(options.nodes.rendezvous);
  return listen_tcp(interface_name.empty() ? meeting.host : interface_name, 0);
}

}  // namespace

OriginalProcess set_up_process(const RunOptions& options, const HostMap& map) {
  open_standard_descriptors();
  OriginalProcess original;
  ::getrlimit(RLIMIT_NOFILE, &original.open_files);
  raise_open_files(options, map, original.open_files);
  // A process that ignores SIGCHLD, as its parent did, gets no exit codes.
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : signals_to_forward()) sigaddset(&blocked, signal);
  // A write that fails must give an error, not end the process.
  sigaddset(&blocked, SIGPIPE);
  sigaddset(&blocked, SIGXFSZ);
  sigaddset(&blocked, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &blocked, &original.signal_mask);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return original;
}

std::vector<int> signals_to_forward() {
  std::vector<int> signals;
  for (const int signal : kForwarded) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) signals.push_back(signal);
  }
  return signals;
}

std::string interface_of(const RunOptions& options) {
  for (const auto& [name, value] : options.variables) {
    if (name == "LOCKSTEP_INTERFACE") return value;
  }
  return base::environment("LOCKSTEP_INTERFACE").value_or("");
}

NodeStart make_start(const RunOptions& options, const HostMap& map, Listener& listener) {
  NodeStart start;
  // The PID is for people who look at /proc/net/unix. Nobody can guess the rest.
  start.name = fmt::format("lockstep-{}-{}", ::getpid(), base::to_hex(base::random_bytes(12)));
  const bool one_host = control::one_host(options.nodes);
  listener = one_host ? listen_unix(start.name) : listen_for_workers(options);
  start.rendezvous = to_string(listener.address);
  start.master = one_host ? "127.0.0.1" : listener.address.host;
  start.master_port = static_cast<std::uint32_t>(free_port());
  start.shares = map.shares;
  return start;
}

std::vector<std::pair<std::string, std::string>> as_variables(const RunOptions& options) {
  std::vector<std::pair<std::string, std::string>> variables;
  if (options.threads) {
    for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
      variables.emplace_back(name, fmt::to_string(*options.threads));
  }
  if (options.timeout_s)
    variables.emplace_back("LOCKSTEP_TIMEOUT", fmt::to_string(*options.timeout_s));
  if (!options.engine.empty()) variables.emplace_back("LOCKSTEP_ENGINE", options.engine);
  if (options.device)
    variables.emplace_back("LOCKSTEP_DEVICE", base::word_for(*options.device, kDevices));
  if (options.wire) variables.emplace_back("LOCKSTEP_WIRE", base::word_for(*options.wire, kWires));
  if (!options.faults.empty()) variables.emplace_back("LOCKSTEP_FAULTS", options.faults);
  if (options.fault_seed)
    variables.emplace_back("LOCKSTEP_FAULT_SEED", fmt::to_string(*options.fault_seed));
  if (!options.faults.empty() || base::environment("LOCKSTEP_FAULTS")) {
    // Rates by time count from here.
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    variables.emplace_back("LOCKSTEP_FAULT_START",
                           fmt::format("{:.3f}", std::chrono::duration<double>(now).count()));
  }
  // Last, so that they win.
  variables.insert(variables.end(), options.variables.begin(), options.variables.end());
  return variables;
}

Preparation prepare(const RunOptions& options, const Program& program,
                    const OriginalProcess& original, const HostMap& map, const NodeStart& start,
                    const std::string& secret) {
  Preparation ready;
  ready.prefix = [first = map.first_rank(), world = map.world()](int worker, bool colour) {
    return line_prefix(first + worker, world, colour);
  };
  ready.logs = open_logs(options, map);
  ready.sealed_secret = seal_secret(secret);
  ready.losses = make_loss_channel();
  Binding binding = plan_binding(cores_of_this_process(), options.workers, options.bind);
  JobEnvironment job{.map = map,
                     .start = start,
                     .secret_fd = ready.sealed_secret.get(),
                     .loss_fd = ready.losses.workers.get(),
                     .variables = as_variables(options)};
  if (elastic(options)) {
    ready.news = NewsPage::make();
    job.news_fd = ready.news->fd();
    job.max_restarts = options.max_restarts.value_or(kMaxRestarts);
  }
  job.variables.emplace_back("LOCKSTEP_BINDING", binding.text);

  KeeperPlan& plan = ready.plan;
  // Workers that come later share with those that were there from the start.
  plan.workers = options.workers;
  for (int place = 0; place < places(options) && !binding.cpus.empty(); ++place)
    plan.cpus.push_back(binding.cpus[static_cast<std::size_t>(place) % binding.cpus.size()]);
  plan.program = program.path;
  plan.arguments = [command = options.command](int) { return command; };
  plan.environment = [inherited = own_environment(), job](int worker, const WorkerStart& now) {
    return worker_environment(inherited, job, job.map.first_rank() + worker, now);
  };
  // Workers have process groups of their own, and only the foreground group may read a terminal.
  const bool reads = map.node == 0 && !options.nodes.lifeline && ::isatty(STDIN_FILENO) != 1;
  plan.input = reads ? STDIN_FILENO : -1;
  plan.leader_keeps_output = options.leader_keeps_output && map.node == 0;
  plan.secret = job.secret_fd;
  plan.losses = job.loss_fd;
  plan.news = job.news_fd;
  plan.restarts = elastic(options);
  plan.open_files = original.open_files;
  plan.signal_mask = original.signal_mask;
  for (int stream = 0; stream < 2 * places(options); ++stream)
    plan.outputs.push_back(base::make_pipe());
  return ready;
}

int free_port() {
  // Free for IPv4 and IPv6, if there is IPv6: PyTorch's store listens on both.
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  const base::Fd six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t size = sizeof any6;
  if (six && ::bind(six.get(), reinterpret_cast<sockaddr*>(&any6), size) == 0 &&
      ::getsockname(six.get(), reinterpret_cast<sockaddr*>(&any6), &size) == 0) {
    return ntohs(any6.sin6_port);
  }
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  const base::Fd four(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!four && errno == EMFILE)
    throw Unavailable("this process may open no more files; raise `ulimit -n`");
  size = sizeof any4;
  if (four && ::bind(four.get(), reinterpret_cast<sockaddr*>(&any4), size) == 0 &&
      ::getsockname(four.get(), reinterpret_cast<sockaddr*>(&any4), &size) == 0) {
    return ntohs(any4.sin_port);
  }
  throw Unavailable("no free TCP port for MASTER_PORT; see `ss -s`");
}

// The environment of a worker.
namespace {

using Variables = std::map<std::string, std::string>;

Variables parsed(const std::vector<std::string>& strings) {
  Variables variables;
  for (const auto& text : strings) {
    const auto equals = text.find('=');
    if (equals != std::string::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

// torchrun calls a host a group.
void set_ranks(Variables& variables, int rank, const HostMap& map, int workers) {
  for (const char* name : {"RANK", "ROLE_RANK"}) variables[name] = fmt::to_string(rank);
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"})
    variables[name] = fmt::to_string(map.nodes() == 1 ? workers : map.world());
  variables["LOCAL_RANK"] = fmt::to_string(rank - map.first_rank());
  variables["LOCAL_WORLD_SIZE"] = fmt::to_string(workers);
  variables["GROUP_RANK"] = fmt::to_string(map.node);
  variables["GROUP_WORLD_SIZE"] = fmt::to_string(map.nodes());
  variables["ROLE_NAME"] = "default";
}

// In PyTorch's env:// rendezvous rank 0 serves MASTER_PORT, unless TORCHELASTIC_USE_AGENT_STORE says
// that an agent does. We serve no such store, so the value of a torchrun around us must not stay.
void set_torchrun(Variables& variables, const NodeStart& start, int max_restarts, int restarts) {
  variables["MASTER_ADDR"] = start.master;
  variables["MASTER_PORT"] = fmt::to_string(start.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = fmt::to_string(restarts);
  variables["TORCHELASTIC_MAX_RESTARTS"] = fmt::to_string(max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = start.name;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables.erase("TORCHELASTIC_ERROR_FILE");
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
}

void set_lockstep(Variables& variables, const JobEnvironment& job, int estate) {
  variables["LOCKSTEP_RENDEZVOUS"] = job.start.rendezvous;
  variables["LOCKSTEP_SECRET_FD"] = fmt::to_string(job.secret_fd);
  variables["LOCKSTEP_LOSS_FD"] = fmt::to_string(job.loss_fd);
  for (const char* name : {"LOCKSTEP_SECRET_FILE", "LOCKSTEP_NEWS_FD", "LOCKSTEP_ELASTIC",
                           "LOCKSTEP_PLACES", "LOCKSTEP_ESTATE_FD"})
    variables.erase(name);
  if (job.news_fd < 0) return;
  variables["LOCKSTEP_NEWS_FD"] = fmt::to_string(job.news_fd);
  variables["LOCKSTEP_ELASTIC"] = "1";
  if (estate >= 0) variables["LOCKSTEP_ESTATE_FD"] = fmt::to_string(estate);
  if (job.map.nodes() == 1 && job.start.rendezvous.starts_with("unix:"))
    variables["LOCKSTEP_PLACES"] = fmt::to_string(job.map.world());
}

// By default each library takes all cores. If every worker did so, all would be slower.
void set_threads(Variables& variables) {
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) variables.emplace(name, "1");
}

}  // namespace

std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int rank,
                                            const WorkerStart& now) {
  Variables variables = parsed(inherited);
  set_ranks(variables, rank, job.map, now.workers);
  set_torchrun(variables, job.start, job.max_restarts, now.restarts);
  set_lockstep(variables, job, now.estate);
  set_threads(variables);
  for (const auto& [name, value] : job.variables) variables[name] = value;

  std::vector<std::string> strings;
  strings.reserve(variables.size());
  for (const auto& [name, value] : variables) strings.push_back(fmt::format("{}={}", name, value));
  return strings;
}

}  // namespace lockstep::control
