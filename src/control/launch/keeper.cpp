#include "control/launch/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_map>

#include "control/launch/binding.h"
#include "control/launch/process_table.h"
#include "control/launch/program.h"
#include "control/rendezvous/estate.h"

namespace lockstep::control {
namespace {

constexpr std::chrono::seconds kSweepLimit{10};

// Everything from `first` on closes at exec. Our own descriptors do so anyway; this is for what
// the launcher was started with.
void close_on_exec_from(int first) {
  constexpr unsigned kCloseRangeCloexec = 1U << 2;
  if (::syscall(SYS_close_range, first, ~0U, kCloseRangeCloexec) == 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  for (int fd = first; fd < static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 65536)); ++fd) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

// Closes everything from 3 on except `kept`: the launcher's sockets and pipes must end with it.
void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  const auto close_from_to = [](int first, unsigned last) {
    if (static_cast<unsigned>(first) > last) return;
    if (::syscall(SYS_close_range, first, last, 0) == 0) return;
    for (int fd = first; fd <= static_cast<int>(std::min(last, 65535U)); ++fd) ::close(fd);
  };
  int next = STDERR_FILENO + 1;
  for (const int fd : kept) {
    if (fd < next) continue;
    close_from_to(next, static_cast<unsigned>(fd) - 1);
    next = fd + 1;
  }
  close_from_to(next, ~0U);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (auto& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

void send(int events, const KeeperEvent& event) {
  // A launcher that is gone shows at the lifeline; here nothing is left to do about it.
  while (::write(events, &event, sizeof event) < 0 && errno == EINTR) {
  }
}

// The keeper itself, in its own process, which has one thread.
class KeeperProcess {
 public:
  KeeperProcess(KeeperPlan& plan, base::Fd events, base::Fd lifeline)
      : plan_(plan), events_(std::move(events)), lifeline_(std::move(lifeline)) {}

  [[noreturn]] void run(pid_t launcher);

 private:
  void isolate();
  void start_workers();
  void start_worker(int rank);
  [[noreturn]] void become_worker(int rank, pid_t keeper, int estate);
  void serve();
  bool launcher_gone() const;
  bool take_orders();
  void obey(const KeeperOrder& order);
  void report_ends();
  void forward(int signal) const;
  void kill_worker(int rank) const;

  KeeperPlan& plan_;
  base::Fd events_;
  base::Fd lifeline_;
  base::Fd child_signals_;
  base::Fd null_;
  std::unordered_map<pid_t, int> ranks_;  // of the workers that have not been reaped
  std::unordered_map<int, int> starts_;   // by worker: how often one was tried
  EstateKeeper estate_;                   // of workers that may be started again
};

void KeeperProcess::run(pid_t launcher) {
  ::prctl(PR_SET_NAME, "lockstep-keeper");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // A keeper that somebody has stopped must wake up when the launcher dies.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  isolate();
  // If the launcher died before prctl() asked for it, no signal will come, and nothing is to be started.
  if (::getppid() == launcher) {
    start_workers();
    serve();
  }
  const FamilyEnd ended = end_descendants(Deadline::after(kSweepLimit));
  send(events_.get(), {KeeperEvent::Kind::kSwept, -1, 0, ended.killed});
  ::_exit(0);
}

// Only SIGKILL and SIGSTOP reach the keeper: a Ctrl-C is the launcher's to handle.
void KeeperProcess::isolate() {
  ::setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  child_signals_ = base::Fd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  null_ = base::Fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
}

bool KeeperProcess::launcher_gone() const {
  pollfd entry{lifeline_.get(), 0, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR)) != 0;
}

void KeeperProcess::start_workers() {
  for (int rank = 0; rank < plan_.workers && !launcher_gone(); ++rank) start_worker(rank);
  // Only worker 0 may hold the launcher's standard input; and the keeper, if it may have to start worker 0 again.
  if (!plan_.restarts || plan_.input != STDIN_FILENO) ::dup2(null_.get(), STDIN_FILENO);
  if (!plan_.restarts || !plan_.leader_keeps_output) ::dup2(null_.get(), STDOUT_FILENO);
}

void KeeperProcess::start_worker(int rank) {
  const pid_t keeper = ::getpid();
  ++starts_[rank];
  const base::Fd estate = plan_.restarts ? estate_.open() : base::Fd();
  const pid_t pid = ::fork();
  if (pid == 0) become_worker(rank, keeper, estate.get());
  if (pid < 0) {
    send(events_.get(), {KeeperEvent::Kind::kNotStarted, rank, 0, errno});
    send(events_.get(), {KeeperEvent::Kind::kAllReported});
  } else {
    // Here and in the worker: a signal for the group must find it, whichever of the two runs first.
    ::setpgid(pid, pid);
    ranks_.emplace(pid, rank);
    send(events_.get(), {KeeperEvent::Kind::kStarted, rank, pid, 0});
  }
  for (std::size_t stream = 0; stream < 2 && !plan_.restarts; ++stream) {
    plan_.outputs[2 * static_cast<std::size_t>(rank) + stream].write.reset();
  }
}

void KeeperProcess::become_worker(int rank, pid_t keeper, int estate) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) ::_exit(1);  // it died before the line above
  ::setpgid(0, 0);
  const auto first = 2 * static_cast<std::size_t>(rank);
  const int input = plan_.inputs.empty() ? (rank == 0 ? plan_.input : -1)
                                         : plan_.inputs[static_cast<std::size_t>(rank)].read.get();
  ::dup2(input >= 0 ? input : null_.get(), STDIN_FILENO);
  if (rank != 0 || !plan_.leader_keeps_output) {
    ::dup2(plan_.outputs[first].write.get(), STDOUT_FILENO);
    ::dup2(plan_.outputs[first + 1].write.get(), STDERR_FILENO);
  }
  close_on_exec_from(STDERR_FILENO + 1);
  for (const int fd : {plan_.secret, plan_.losses, plan_.news, estate}) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
  }
  ::setrlimit(RLIMIT_NOFILE, &plan_.open_files);
  // If the kernel refuses, the worker only runs slower.
  if (!plan_.cpus.empty()) bind_to(plan_.cpus[static_cast<std::size_t>(rank)]);

  auto environment = plan_.environment(rank, {plan_.workers, starts_[rank] - 1, estate});
  auto arguments = plan_.arguments(rank);
  auto argv = pointers(arguments);
  auto envp = pointers(environment);
  ::sigprocmask(SIG_SETMASK, &plan_.signal_mask, nullptr);
  ::execve(plan_.program.c_str(), argv.data(), envp.data());
  const int error = errno;
  send(events_.get(), {KeeperEvent::Kind::kNotStarted, rank, ::getpid(), error});
  ::_exit(1);
}

void KeeperProcess::serve() {
  while (true) {
    std::vector<pollfd> entries = {{lifeline_.get(), POLLIN, 0}, {child_signals_.get(), POLLIN, 0}};
    for (const int socket : estate_.sockets()) entries.push_back({socket, POLLIN, 0});
    // No limit: the keeper's only task is to wait for the launcher, whose end always shows here.
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[1].revents != 0) report_ends();
    if (std::any_of(entries.begin() + 2, entries.end(),
                    [](const pollfd& entry) { return entry.revents != 0; }))
      estate_.serve();
    if (entries[0].revents != 0 && !take_orders()) return;
  }
}

// False when the launcher has closed its end.
bool KeeperProcess::take_orders() {
  KeeperOrder orders[64];
  const ssize_t got = ::read(lifeline_.get(), orders, sizeof orders);
  if (got < 0) return errno == EINTR;
  for (std::size_t i = 0; i < static_cast<std::size_t>(got) / sizeof orders[0]; ++i)
    obey(orders[i]);
  return got > 0;
}

void KeeperProcess::obey(const KeeperOrder& order) {
  switch (order.kind) {
    case KeeperOrder::Kind::kSignal:
      return forward(order.value);
    case KeeperOrder::Kind::kStart:
      if (!launcher_gone()) start_worker(order.value);
      return;
    case KeeperOrder::Kind::kKill:
      return kill_worker(order.value);
    case KeeperOrder::Kind::kSize:
      plan_.workers = order.value;
      return;
  }
}

void KeeperProcess::report_ends() {
  signalfd_siginfo ignored[16];
  while (::read(child_signals_.get(), ignored, sizeof ignored) > 0) {
  }
  bool reported = false;
  for (siginfo_t dead{};
       ::waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) == 0 && dead.si_pid != 0; dead = {}) {
    const auto worker = ranks_.find(dead.si_pid);
    // Before it is reaped: until then no other group can have its number.
    if (worker != ranks_.end() && plan_.restarts && dead.si_code != CLD_EXITED)
      ::kill(-dead.si_pid, SIGKILL);
    int status = 0;
    ::waitpid(dead.si_pid, &status, 0);
    if (worker == ranks_.end()) continue;  // an orphan that a worker had started
    send(events_.get(), {KeeperEvent::Kind::kEnded, worker->second, dead.si_pid, status});
    ranks_.erase(worker);
    reported = true;
  }
  if (reported) send(events_.get(), {KeeperEvent::Kind::kAllReported});
}

// To the process group, as a terminal does: a worker may be a script that waits for the real program.
void KeeperProcess::forward(int signal) const {
  for (const auto& [pid, rank] : ranks_) {
    if (::kill(-pid, signal) != 0) ::kill(pid, signal);
  }
}

void KeeperProcess::kill_worker(int rank) const {
  for (const auto& [pid, its_rank] : ranks_) {
    if (its_rank == rank && ::kill(-pid, SIGKILL) != 0) ::kill(pid, SIGKILL);
  }
}

}  // namespace

Keeper start_keeper(KeeperPlan& plan) {
  base::Pipe events = base::make_pipe();
  base::Pipe lifeline = base::make_pipe();
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw Unavailable(
        fmt::format("cannot start a process: {}; raise `ulimit -u`", std::strerror(errno)));
  }
  if (pid == 0) {
    std::vector<int> kept = {events.write.get(), lifeline.read.get(), plan.secret,
                             plan.losses,        plan.news,           plan.input};
    for (const auto& output : plan.outputs) kept.push_back(output.write.get());
    for (const auto& one : plan.inputs) kept.push_back(one.read.get());
    close_all_but(std::move(kept));
    KeeperProcess(plan, std::move(events.write), std::move(lifeline.read)).run(launcher);
  }
  for (auto& output : plan.outputs) output.write.reset();
  for (auto& one : plan.inputs) one.read.reset();
  base::set_nonblocking(lifeline.write.get());
  return {pid, std::move(events.read), std::move(lifeline.write)};
}

}  // namespace lockstep::control
