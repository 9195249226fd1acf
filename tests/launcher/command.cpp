#include "tests/launcher/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>

#include "base/hash.h"
#include "base/process.h"
#include "control/launch/process_table.h"

namespace lockstep::testing {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Appends what is there; false at the end of the stream.
bool append_from(base::Fd& pipe, std::string& text) {
  char buffer[65536];
  const ssize_t got = ::read(pipe.get(), buffer, sizeof buffer);
  if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
  if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) pipe.reset();
  return got > 0;
}

std::string read_all(const std::string& path) {
  std::string text;
  base::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  while (file && append_from(file, text)) {
  }
  return text;
}

}  // namespace

Command::Command(std::vector<std::string> arguments, std::vector<std::string> variables,
                 const std::function<bool()>& enter) {
  // Looking for leaks takes seconds at the end of every process on some hosts; the unit tests do
  // it.
  if (kSlowBuild) variables.emplace_back("ASAN_OPTIONS=detect_leaks=0");
  for (char** text = environ; *text != nullptr; ++text) variables.emplace_back(*text);
  auto argv = pointers(arguments);
  auto envp = pointers(variables);
  base::Pipe out = base::make_pipe();
  base::Pipe err = base::make_pipe();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out.write.get(), STDOUT_FILENO);
    ::dup2(err.write.get(), STDERR_FILENO);
    if (enter && !enter()) ::_exit(126);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ended_ = base::open_pidfd(pid_);
  out_pipe_ = std::move(out.read);
  err_pipe_ = std::move(err.read);
}

Command::~Command() {
  if (pid_ <= 0 || exit_code_ >= 0 || !ended_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Command::signal(int number) const {
  ::kill(pid_, number);
}

bool Command::read_some(Deadline deadline) {
  pollfd entries[2] = {{out_pipe_.get(), POLLIN, 0}, {err_pipe_.get(), POLLIN, 0}};
  if (::poll(entries, 2, deadline.left_ms()) <= 0) return false;
  if (entries[0].revents != 0) append_from(out_pipe_, out_);
  if (entries[1].revents != 0) append_from(err_pipe_, err_);
  return true;
}

bool Command::wait_for(const std::string& text, int times, Deadline deadline) {
  while (count(out_, text) + count(err_, text) < times) {
    if ((!out_pipe_ && !err_pipe_) || !read_some(deadline)) return false;
  }
  return true;
}

bool Command::wait_for_in_err(const std::string& text, Deadline deadline) {
  while (count(err_, text) == 0) {
    if (!err_pipe_ || !base::wait_ready(err_pipe_.get(), POLLIN, deadline)) return false;
    append_from(err_pipe_, err_);
  }
  return true;
}

bool Command::finish(Deadline deadline) {
  while (out_pipe_ || err_pipe_) {
    if (!read_some(deadline)) return false;
  }
  return reap(deadline);
}

bool Command::reap(Deadline deadline) {
  if (!base::wait_ready(ended_.get(), POLLIN, deadline)) return false;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

Command run_actor(int workers, std::vector<std::string> role, std::vector<std::string> options,
                  std::vector<std::string> variables) {
  std::vector<std::string> arguments = {LOCKSTEP_BINARY, "run", "-n", std::to_string(workers)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"--", ACTOR_BINARY});
  arguments.insert(arguments.end(), role.begin(), role.end());
  return Command(std::move(arguments), std::move(variables));
}

std::string make_marker() {
  return "LOCKSTEP_TEST_MARKER=" + base::to_hex(base::random_bytes(8));
}

std::vector<pid_t> processes_with(const std::string& marker) {
  std::vector<pid_t> found;
  for (const auto& entry : control::read_process_table()) {
    if (entry.dead) continue;
    const std::string environment = read_all("/proc/" + std::to_string(entry.pid) + "/environ");
    if (environment.find(marker) != std::string::npos) found.push_back(entry.pid);
  }
  return found;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& entry : control::read_process_table()) {
    if (entry.parent == parent && !entry.dead) found.push_back(entry.pid);
  }
  return found;
}

bool wait_for_children(pid_t parent, std::size_t number, Deadline deadline) {
  while (children_of(parent).size() != number) {
    if (deadline.expired()) return false;
  }
  return true;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int count(const std::string& text, const std::string& piece) {
  int times = 0;
  for (auto at = text.find(piece); at != std::string::npos;
       at = text.find(piece, at + piece.size()))
    ++times;
  return times;
}

}  // namespace lockstep::testing
