// What the launcher decides, without doing it: when a job ends, why, and with which exit code.
//
//   running → ending     a worker failed; a signal asked for the end; the output cannot be written
//   running → released   every worker has ended
//   ending → released    every worker has ended, the time to do so is up, or a second Ctrl-C came
//   released             whatever is left is being killed; nothing is forwarded any more
//
// The first cause of the end decides the exit code; what happens after it is a consequence. Output
// that is lost after every worker has ended well is a cause, too.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::control {

struct EndLimits {
  std::chrono::nanoseconds grace = std::chrono::seconds(10);  // after a signal
  // After a failure. With the time that killing takes, the others have ended within 2 s.
  std::chrono::nanoseconds after_failure = std::chrono::milliseconds(1500);
};

// How a worker ended.
struct WorkerEnd {
  enum class How : std::uint8_t { kExited, kKilled, kNotStarted };

  int rank = 0;
  How how = How::kExited;
  int value = 0;  // exit code, signal, or errno

  bool failed() const { return how != How::kExited || value != 0; }
  bool operator==(const WorkerEnd&) const = default;
};

// The end that a wait status of waitpid(2) stands for.
WorkerEnd worker_end(int rank, int wait_status);

// Of several ends that were noticed together: the one to blame. A worker that a signal
// killed comes before one that exited with a code, since the peers of a crashed worker exit that
// way.
std::optional<WorkerEnd> first_failure(const std::vector<WorkerEnd>& together);

// The launcher's exit code for it, as a shell has it.
int exit_code(const WorkerEnd& end);

// "exited with code 7", "was killed by SIGSEGV (Segmentation fault)" …
std::string describe(const WorkerEnd& end);

// Threads:   one caller at a time.
// Blocking:  never; time is an argument.
// Failure:   none.
// Ownership: plain values.
class JobState {
 public:
  using Clock = std::chrono::steady_clock;

  // What to do now.
  struct Orders {
    std::vector<int> forward;  // signals for all workers, in this order
    bool release = false;      // kill whatever is left
  };
  enum class Cause : std::uint8_t { kNone, kSignal, kFailure, kOutputClosed, kKeeperLost };

  JobState(int workers, EndLimits limits) : live_(workers), limits_(limits) {}

  Orders on_ends(const std::vector<WorkerEnd>& together, Clock::time_point now);
  Orders on_signal(int signal, Clock::time_point now);
  // Standard output or error cannot be written any more; `error` is the errno.
  Orders on_output_closed(int error, Clock::time_point now);
  Orders on_keeper_lost();
  Orders on_time(Clock::time_point now);

  // When on_time() wants to be called, if at all.
  std::optional<Clock::time_point> deadline() const { return deadline_; }

  bool released() const { return released_; }
  Cause cause() const { return cause_; }
  bool cut_short() const { return cut_short_; }  // workers were told to end
  int live() const { return live_; }
  const std::optional<WorkerEnd>& failure() const { return failure_; }
  int exit_code() const { return exit_code_; }

 private:
  Orders end(Cause cause, int code, int signal, Clock::time_point deadline);
  Orders release();

  int live_;
  EndLimits limits_;
  bool released_ = false;
  bool cut_short_ = false;
  Cause cause_ = Cause::kNone;
  int exit_code_ = 0;
  std::optional<WorkerEnd> failure_;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace lockstep::control
