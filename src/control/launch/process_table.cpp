#include "control/launch/process_table.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <iterator>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/environment.h"
#include "base/process.h"

namespace lockstep::control {
namespace {

std::optional<ProcessEntry> read_entry(pid_t pid) {
  const base::Fd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  char text[512];
  const ssize_t got = ::read(file.get(), text, sizeof text);
  if (got <= 0) return std::nullopt;
  return parse_stat({text, static_cast<std::size_t>(got)});
}

// The descriptor means one process. If the PID was given to another process since the table was read,
// that one has another parent and gets no signal. Kernels without pidfds get the plain call.
void signal_process(const ProcessEntry& entry, int signal) {
  const base::Fd process = base::open_pidfd(entry.pid);
  if (!process) {
    if (errno == ENOSYS || errno == EPERM) ::kill(entry.pid, signal);
    return;
  }
  const auto now = read_entry(entry.pid);
  if (!now || now->parent != entry.parent) return;
  ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
}

// False if there is no child at all.
bool reap_dead_children() {
  while (true) {
    const pid_t reaped = ::waitpid(-1, nullptr, WNOHANG);
    if (reaped == 0) return true;
    if (reaped < 0 && errno != EINTR) return false;
  }
}

// Stops all descendants: a process that runs could start another one while we kill.
std::vector<ProcessEntry> stop_descendants(Deadline deadline) {
  std::set<pid_t> stopped;
  while (true) {
    auto family = descendants(read_process_table(), ::getpid());
    bool found_new = false;
    for (const auto& entry : family) {
      if (!stopped.insert(entry.pid).second) continue;
      found_new = true;
      signal_process(entry, SIGSTOP);
    }
    if (!found_new || deadline.expired()) return family;
  }
}

void wait_for_a_dead_child(std::chrono::milliseconds most) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec limit{0, static_cast<long>(std::chrono::nanoseconds(most).count())};
  ::sigtimedwait(&child, nullptr, &limit);
}

}  // namespace

std::optional<ProcessEntry> parse_stat(std::string_view text) {
  const auto blank = text.find(' ');
  const auto name_end = text.rfind(')');
  if (blank == std::string_view::npos || name_end == std::string_view::npos ||
      name_end + 4 > text.size()) {
    return std::nullopt;
  }
  const auto pid = base::parse_number(text.substr(0, blank));
  const char state = text[name_end + 2];
  const auto rest = text.substr(name_end + 4);
  const auto parent = base::parse_number(rest.substr(0, rest.find(' ')));
  if (!pid || !parent) return std::nullopt;
  return ProcessEntry{static_cast<pid_t>(*pid), static_cast<pid_t>(*parent),
                      state == 'Z' || state == 'X', state == 'T' || state == 't'};
}

std::vector<ProcessEntry> descendants(const std::vector<ProcessEntry>& table, pid_t root) {
  std::unordered_multimap<pid_t, const ProcessEntry*> children;
  for (const auto& entry : table) children.emplace(entry.parent, &entry);
  std::vector<ProcessEntry> found;
  std::vector<pid_t> waiting = {root};
  while (!waiting.empty()) {
    const pid_t parent = waiting.back();
    waiting.pop_back();
    const auto [begin, end] = children.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      if (child->second->dead || child->second->pid == root) continue;
      found.push_back(*child->second);
      waiting.push_back(child->second->pid);
    }
    // The table is no snapshot, and PIDs are reused: it may hold a cycle. So each parent is followed once.
    children.erase(parent);
  }
  return found;
}

bool is_stopped(const std::vector<ProcessEntry>& table, pid_t root) {
  auto family = descendants(table, root);
  std::copy_if(table.begin(), table.end(), std::back_inserter(family),
               [root](const ProcessEntry& entry) { return entry.pid == root; });
  return std::any_of(family.begin(), family.end(),
                     [](const ProcessEntry& entry) { return entry.stopped; });
}

std::vector<ProcessEntry> read_process_table() {
  std::vector<ProcessEntry> table;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), &::closedir);
  if (!folder) return table;
  while (const dirent* item = ::readdir(folder.get())) {
    const auto pid = base::parse_number(item->d_name);
    if (!pid) continue;
    if (const auto entry = read_entry(static_cast<pid_t>(*pid))) table.push_back(*entry);
  }
  return table;
}

FamilyEnd end_descendants(Deadline deadline) {
  std::set<pid_t> killed;
  std::vector<pid_t> left;
  while (reap_dead_children()) {
    const auto family = stop_descendants(deadline);
    left.clear();
    for (const auto& entry : family) {
      signal_process(entry, SIGKILL);
      killed.insert(entry.pid);
      left.push_back(entry.pid);
    }
    if (deadline.expired()) return {static_cast<int>(killed.size()), left};
    wait_for_a_dead_child(std::chrono::milliseconds(20));
  }
  return {static_cast<int>(killed.size()), {}};
}

}  // namespace lockstep::control
