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
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/hash.h"
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

// Four pipe ends while starting, two logs and one rendezvous connection per worker, and a reserve.
void raise_open_files(const RunOptions& options, const rlimit& original) {
  const rlim_t per_worker = options.log_dir.empty() ? 5 : 7;
  const rlim_t needed = static_cast<rlim_t>(options.workers) * per_worker + 64;
  if (original.rlim_cur >= needed) return;
  if (original.rlim_max < needed) {
    throw Unavailable(fmt::format(
        "{} workers need {} open files and the limit is {}; raise `ulimit -Hn` or start fewer",
        options.workers, needed, original.rlim_max));
  }
  rlimit raised = original;
  raised.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

LogFile open_log(const std::filesystem::path& path) {
  base::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) {
    throw BadInput(fmt::format("--log-dir: cannot write {}: {}; choose another folder",
                               path.string(), std::strerror(errno)));
  }
  return {path.string(), std::move(file)};
}

std::vector<LogFile> open_logs(const RunOptions& options) {
  std::vector<LogFile> logs;
  if (options.log_dir.empty()) return logs;
  const std::filesystem::path folder = options.log_dir;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw BadInput(fmt::format("--log-dir: cannot make {}: {}; choose another folder",
                               options.log_dir, error.message()));
  }
  for (int rank = 0; rank < options.workers; ++rank) {
    logs.push_back(open_log(folder / fmt::format("rank-{}.out", rank)));
    logs.push_back(open_log(folder / fmt::format("rank-{}.err", rank)));
  }
  return logs;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> strings;
  for (char** text = environ; *text != nullptr; ++text) strings.emplace_back(*text);
  return strings;
}

JobEnvironment job_environment(const RunOptions& options, const std::string& run_id) {
  JobEnvironment job;
  job.workers = options.workers;
  job.run_id = run_id;
  job.master_port = free_port();
  job.threads = options.threads;
  job.timeout_s = options.timeout_s;
  job.engine = options.engine;
  if (options.device) job.device = base::word_for(*options.device, kDevices);
  job.variables = options.variables;
  return job;
}

}  // namespace

OriginalProcess set_up_process(const RunOptions& options) {
  open_standard_descriptors();
  OriginalProcess original;
  ::getrlimit(RLIMIT_NOFILE, &original.open_files);
  raise_open_files(options, original.open_files);
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

Preparation prepare(const RunOptions& options, const Program& program,
                    const OriginalProcess& original) {
  Preparation ready;
  ready.logs = open_logs(options);
  // The PID is for people who look at /proc/net/unix. Nobody can guess the rest.
  const std::string name =
      fmt::format("lockstep-{}-{}", ::getpid(), base::to_hex(base::random_bytes(12)));
  ready.listener = listen_unix(name);
  ready.secret = make_secret();
  ready.sealed_secret = seal_secret(ready.secret);
  ready.losses = make_loss_channel();

  JobEnvironment job = job_environment(options, name);
  job.rendezvous = to_string(ready.listener.address);
  job.secret_fd = ready.sealed_secret.get();
  job.loss_fd = ready.losses.workers.get();

  KeeperPlan& plan = ready.plan;
  plan.program = program.path;
  plan.arguments = options.command;
  plan.environment = [inherited = own_environment(), job](int rank) {
    return worker_environment(inherited, job, rank);
  };
  // Workers have process groups of their own, and only the foreground group may read a terminal.
  plan.input = ::isatty(STDIN_FILENO) == 1 ? -1 : STDIN_FILENO;
  plan.leader_keeps_output = options.leader_keeps_output;
  plan.secret = job.secret_fd;
  plan.losses = job.loss_fd;
  plan.open_files = original.open_files;
  plan.signal_mask = original.signal_mask;
  for (int stream = 0; stream < 2 * options.workers; ++stream)
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

Variables as_variables(const std::vector<std::string>& strings) {
  Variables variables;
  for (const auto& text : strings) {
    const auto equals = text.find('=');
    if (equals != std::string::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

// All workers are on one host: local ranks are ranks. torchrun calls a host a group.
void set_ranks(Variables& variables, int rank, int workers) {
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"})
    variables[name] = fmt::to_string(rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"})
    variables[name] = fmt::to_string(workers);
  variables["GROUP_RANK"] = "0";
  variables["GROUP_WORLD_SIZE"] = "1";
  variables["ROLE_NAME"] = "default";
}

// In PyTorch's env:// rendezvous rank 0 serves MASTER_PORT, unless TORCHELASTIC_USE_AGENT_STORE says
// that an agent does. We serve no such store, so the value of a torchrun around us must not stay.
void set_torchrun(Variables& variables, const JobEnvironment& job) {
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = fmt::to_string(job.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  variables["TORCHELASTIC_MAX_RESTARTS"] = "0";
  variables["TORCHELASTIC_RUN_ID"] = job.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables.erase("TORCHELASTIC_ERROR_FILE");
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
}

void set_lockstep(Variables& variables, const JobEnvironment& job) {
  variables["LOCKSTEP_RENDEZVOUS"] = job.rendezvous;
  variables["LOCKSTEP_SECRET_FD"] = fmt::to_string(job.secret_fd);
  variables["LOCKSTEP_LOSS_FD"] = fmt::to_string(job.loss_fd);
  variables.erase("LOCKSTEP_SECRET_FILE");
  if (job.timeout_s) variables["LOCKSTEP_TIMEOUT"] = fmt::to_string(*job.timeout_s);
  if (!job.engine.empty()) variables["LOCKSTEP_ENGINE"] = job.engine;
  if (!job.device.empty()) variables["LOCKSTEP_DEVICE"] = job.device;
}

// By default each library takes all cores. If every worker did so, all would be slower.
void set_threads(Variables& variables, const JobEnvironment& job) {
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    if (job.threads) {
      variables[name] = fmt::to_string(*job.threads);
    } else {
      variables.emplace(name, "1");
    }
  }
}

}  // namespace

std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int rank) {
  Variables variables = as_variables(inherited);
  set_ranks(variables, rank, job.workers);
  set_torchrun(variables, job);
  set_lockstep(variables, job);
  set_threads(variables, job);
  for (const auto& [name, value] : job.variables) variables[name] = value;

  std::vector<std::string> strings;
  strings.reserve(variables.size());
  for (const auto& [name, value] : variables) strings.push_back(fmt::format("{}={}", name, value));
  return strings;
}

}  // namespace lockstep::control
