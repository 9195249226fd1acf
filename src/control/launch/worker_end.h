// How a worker ended, in the words of a shell.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::control {

inline constexpr int kSignalBase = 128;  // of the exit codes that stand for signals

struct WorkerEnd {
  enum class How : std::uint8_t { kExited, kKilled, kNotStarted };

  int rank = 0;
  How how = How::kExited;
  int value = 0;  // exit code, signal, or errno

  bool failed() const { return how != How::kExited || value != 0; }
  bool exited_with(int code) const { return how == How::kExited && value == code; }
  bool operator==(const WorkerEnd&) const = default;
};

// The end that a wait status of waitpid(2) stands for.
WorkerEnd worker_end(int rank, int wait_status);

// The launcher's exit code for it, as a shell has it.
int exit_code(const WorkerEnd& end);

// "exited with code 7", "was killed by SIGSEGV (Segmentation fault)" …
std::string describe(const WorkerEnd& end);

}  // namespace lockstep::control
