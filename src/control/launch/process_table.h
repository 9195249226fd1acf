// Who is whose child, and how to end a whole family so that nobody escapes.
#pragma once

#include <lockstep/deadline.h>
#include <sys/types.h>

#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::control {

// What we need of one /proc/PID/stat.
struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  bool dead = false;     // a zombie: only its exit status is left
  bool stopped = false;  // by a signal or a debugger

  bool operator==(const ProcessEntry&) const = default;
};

// Reads one /proc/PID/stat; the program's name in it may hold anything, blanks and brackets
// included.
std::optional<ProcessEntry> parse_stat(std::string_view text);

// All living processes below `root`, parents before children.
std::vector<ProcessEntry> descendants(const std::vector<ProcessEntry>& table, pid_t root);

std::vector<ProcessEntry> read_process_table();

// Whether this process, or one below it, is stopped: a worker may be a script that waits for the real program.
bool is_stopped(const std::vector<ProcessEntry>& table, pid_t root);

// What end_descendants() did.
struct FamilyEnd {
  int killed = 0;
  std::vector<pid_t> left;  // those that could not be ended by the deadline
};

// Kills every descendant of the calling process and reaps what becomes its child. The caller is a
// child subreaper with SIGCHLD blocked and has one thread.
//
// Each round first stops all descendants, until a walk through /proc finds no new one. A stopped
// process cannot fork, so the second half of the round kills all of them. Orphans become children of
// the subreaper: when it has no child left, there is no descendant left.
FamilyEnd end_descendants(Deadline deadline);

}  // namespace lockstep::control
