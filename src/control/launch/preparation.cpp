#include "control/launch/preparation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/hash.h"
#include "control/launch/worker_environment.h"
#include "control/rendezvous/secret.h"

namespace lockstep::control {
namespace {

constexpr std::array<int, 8> kForwarded = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                           SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

// A descriptor that we open must never get the number of a closed standard stream.
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
  job.local_workers = options.workers;
  job.run_id = run_id;
  job.master_port = free_port();
  job.threads = options.threads;
  job.timeout_s = options.timeout_s;
  job.engine = options.engine;
  job.device = options.device;
  job.variables = options.variables;
  return job;
}

}  // namespace

OriginalProcess set_up_process(const RunOptions& options) {
  open_standard_descriptors();
  OriginalProcess original;
  ::getrlimit(RLIMIT_NOFILE, &original.open_files);
  raise_open_files(options, original.open_files);
  // A parent that ignores SIGCHLD would make exit codes vanish.
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : signals_to_forward()) sigaddset(&blocked, signal);
  // What cannot be written is told, and does not kill.
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
  // The process number is for people who look at /proc/net/unix; the rest keeps the name unguessed.
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
  // A terminal cannot be read from another process group than the foreground's.
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
  // Dual-stack where there is IPv6: PyTorch's store listens on both.
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

}  // namespace lockstep::control
