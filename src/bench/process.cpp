#include "bench/process.h"

#include <fcntl.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/process.h"
#include "control/launch/process_table.h"

namespace lockstep::bench {
namespace {

constexpr std::array<int, 3> kEnding = {SIGINT, SIGTERM, SIGHUP};
constexpr std::chrono::seconds kGrace{5};
constexpr std::chrono::seconds kSweepLimit{5};

// Appends what can be read now. Closes the pipe at its end.
void drain(base::Fd& pipe, std::string& text) {
  char buffer[65536];
  const ssize_t got = ::read(pipe.get(), buffer, sizeof buffer);
  if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
  if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) pipe.reset();
}

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// The signal mask that the process began with, kept for all runners. Programs must get this one: a
// program that blocks SIGTERM ends late.
const sigset_t& first_mask() {
  static const sigset_t mask = [] {
    sigset_t current;
    ::sigprocmask(SIG_BLOCK, nullptr, &current);
    return current;
  }();
  return mask;
}

}  // namespace

struct ProgramRunner::Child {
  pid_t pid = -1;
  base::Fd ended;  // a pidfd
  base::Fd out;
  base::Fd err;
};

ProgramRunner::ProgramRunner() {
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kEnding) sigaddset(&set, signal);
  signals_ = base::Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  sigaddset(&set, SIGCHLD);
  original_mask_ = first_mask();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

ProgramRunner::~ProgramRunner() {
  control::end_descendants(Deadline::after(kSweepLimit));
}

ProgramRunner::Child ProgramRunner::start(const std::vector<std::string>& command,
                                          const Variables& variables, int death_signal) {
  base::Pipe out = base::make_pipe();
  base::Pipe err = base::make_pipe();
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t runner = ::getpid();
  Child child;
  child.pid = ::fork();
  if (child.pid < 0) throw Unavailable("no process to be had; see `ulimit -u`");
  if (child.pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, death_signal);
    if (::getppid() != runner) ::_exit(127);  // it died before the line above
    ::setpgid(0, 0);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out.write.get(), STDOUT_FILENO);
    ::dup2(err.write.get(), STDERR_FILENO);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    ::sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  child.ended = base::open_pidfd(child.pid);
  child.out = std::move(out.read);
  child.err = std::move(err.read);
  return child;
}

// True if the program has ended in time. Throws Interrupted if a signal came, unless `signals` is
// -1.
bool ProgramRunner::follow(Child& child, int signals, Deadline deadline, ProgramResult& result) {
  while (!deadline.expired()) {
    pollfd entries[4] = {{signals, POLLIN, 0},
                         {child.out.get(), POLLIN, 0},
                         {child.err.get(), POLLIN, 0},
                         {child.ended.get(), POLLIN, 0}};
    ::poll(entries, 4, deadline.left_ms());
    signalfd_siginfo info{};
    if (entries[0].revents != 0 && ::read(signals, &info, sizeof info) == sizeof info)
      throw Interrupted{static_cast<int>(info.ssi_signo)};
    const bool output = entries[1].revents != 0 || entries[2].revents != 0;
    if (entries[1].revents != 0) drain(child.out, result.out);
    if (entries[2].revents != 0) drain(child.err, result.err);
    if (entries[3].revents != 0 && !output) return true;  // and all its output has been read
  }
  return false;
}

ProgramResult ProgramRunner::run(const std::vector<std::string>& command,
                                 const Variables& variables, Deadline deadline, int death_signal) {
  ProgramResult result;
  Child child = start(command, variables, death_signal);
  int interrupted = 0;
  bool ended = false;
  try {
    ended = follow(child, signals_.get(), deadline, result);
    result.timed_out = !ended;
  } catch (const Interrupted& signal) {
    interrupted = signal.signal;
  }
  if (!ended) {
    ::kill(child.pid, SIGTERM);
    if (!follow(child, -1, Deadline::after(kGrace), result)) ::kill(-child.pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  result.exit_code = code_of(status);
  // Processes that it has left behind would disturb the next program.
  control::end_descendants(Deadline::after(kSweepLimit));
  if (interrupted != 0) throw Interrupted{interrupted};
  return result;
}

}  // namespace lockstep::bench
