#include "bench/process.h"

#include <fcntl.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
  base::Fd pidfd;
  base::Fd out;
  base::Fd err;
  bool ended = false;  // and all of its output has been read
  ProgramResult result;
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

ProgramRunner::Child ProgramRunner::start(const Program& program) {
  base::Pipe out = base::make_pipe();
  base::Pipe err = base::make_pipe();
  std::vector<char*> words;
  words.reserve(program.command.size() + 1);
  for (const auto& word : program.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t runner = ::getpid();
  Child child;
  child.pid = ::fork();
  if (child.pid < 0) throw Unavailable("no process to be had; see `ulimit -u`");
  if (child.pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, program.death_signal);
    if (::getppid() != runner) ::_exit(127);  // it died before the line above
    ::setpgid(0, 0);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out.write.get(), STDOUT_FILENO);
    ::dup2(err.write.get(), STDERR_FILENO);
    for (const auto& [name, value] : program.variables) ::setenv(name.c_str(), value.c_str(), 1);
    ::sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
    if (program.enter && !program.enter()) ::_exit(127);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  child.pidfd = base::open_pidfd(child.pid);
  child.out = std::move(out.read);
  child.err = std::move(err.read);
  return child;
}

// Until all have ended, or the deadline. Throws Interrupted if a signal came, unless `signals` is -1.
void ProgramRunner::follow(std::vector<Child>& children, int signals, Deadline deadline,
                           Meanwhile* meanwhile) {
  const auto runs = [](const Child& child) { return !child.ended; };
  while (!deadline.expired() && std::any_of(children.begin(), children.end(), runs)) {
    std::vector<pollfd> entries = {{signals, POLLIN, 0},
                                   {meanwhile == nullptr ? -1 : meanwhile->fd(), POLLIN, 0}};
    for (const Child& child : children) {
      for (const base::Fd* const fd : {&child.out, &child.err, &child.pidfd})
        entries.push_back({child.ended ? -1 : fd->get(), POLLIN, 0});
    }
    ::poll(entries.data(), entries.size(), deadline.left_ms());
    signalfd_siginfo info{};
    if (entries[0].revents != 0 && ::read(signals, &info, sizeof info) == sizeof info)
      throw Interrupted{static_cast<int>(info.ssi_signo)};
    if (entries[1].revents != 0) meanwhile->readable();
    for (std::size_t i = 0; i < children.size(); ++i) {
      Child& child = children[i];
      const pollfd* const of = &entries[2 + 3 * i];
      if (of[0].revents != 0) drain(child.out, child.result.out);
      if (of[1].revents != 0) drain(child.err, child.result.err);
      child.ended = child.ended || (of[2].revents != 0 && of[0].revents == 0 && of[1].revents == 0);
      if (child.ended && of[2].revents != 0 && meanwhile != nullptr) meanwhile->ended(i);
    }
  }
}

ProgramResult ProgramRunner::run(const Program& program, Deadline deadline) {
  return run({program}, deadline, nullptr).front();
}

std::vector<ProgramResult> ProgramRunner::run(const std::vector<Program>& programs,
                                              Deadline deadline, Meanwhile* meanwhile) {
  std::vector<Child> children;
  children.reserve(programs.size());
  for (const Program& program : programs) children.push_back(start(program));
  int interrupted = 0;
  try {
    follow(children, signals_.get(), deadline, meanwhile);
  } catch (const Interrupted& signal) {
    interrupted = signal.signal;
  }
  for (Child& child : children) {
    child.result.timed_out = !child.ended && interrupted == 0;
    if (!child.ended) ::kill(child.pid, SIGTERM);
  }
  follow(children, -1, Deadline::after(kGrace), nullptr);
  std::vector<ProgramResult> results;
  for (Child& child : children) {
    if (!child.ended) ::kill(-child.pid, SIGKILL);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    child.result.exit_code = code_of(status);
    results.push_back(std::move(child.result));
  }
  // Processes that they have left behind would disturb the next program.
  control::end_descendants(Deadline::after(kSweepLimit));
  if (interrupted != 0) throw Interrupted{interrupted};
  return results;
}

}  // namespace lockstep::bench
