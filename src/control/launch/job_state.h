// What the launcher decides, without doing it: when a job ends, why, and with which exit code.
//
//   running → judging    a worker failed that had lost another one, which lives: it may end soon, and be the cause
//   running → ending     a worker failed; a signal asked for the end; the output cannot be written
//   judging → ending     the cause is known, or the time for it is up
//   running → released   every worker has ended
//   ending → released    every worker has ended, the time to do so is up, or a second Ctrl-C came
//   released             whatever is left is being killed; nothing is forwarded any more
//
// The first cause of the end decides the exit code; what happens after it is a consequence. Output
// that is lost after every worker has ended well is a cause, too. A terminal that goes away is told twice, by SIGHUP and
// by output that cannot be written, in any order: then the signal is the cause.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "control/launch/blame.h"

namespace lockstep::control {

struct EndRules {
  std::chrono::nanoseconds grace = std::chrono::seconds(10);  // after a signal, or a closed output
  // After a failure. With the time that killing takes, the others have ended within 2 s.
  std::chrono::nanoseconds after_failure = std::chrono::milliseconds(1500);
  // Of that, how long a worker that was lost has for its own end, before the others are told to end.
  std::chrono::nanoseconds for_the_cause = std::chrono::milliseconds(1000);

  std::vector<int> explained_codes;  // of worker 0, which has told the user what they stand for
  std::optional<int> stopped_code;   // by which a worker says that all have stopped early, in order
};

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

  JobState(int workers, EndRules rules) : live_(workers), rules_(std::move(rules)) {}

  // A worker says whom it lost, before it ends; or that it goes on.
  void on_loss(int rank, std::optional<int> whom) { blame_.on_loss(rank, whom); }
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
  const std::optional<Blame::Verdict>& failure() const { return failure_; }
  // Whom the worker that failed first had lost, as far as is known; also while the cause is awaited.
  std::optional<int> lost() const;
  std::optional<WorkerEnd> end_of(int rank) const { return blame_.end_of(rank); }
  bool explained(const WorkerEnd& end) const;
  int exit_code() const { return exit_code_; }

 private:
  Orders judge(Clock::time_point now);
  Orders end_for_failure(Clock::time_point now);
  Orders end(Cause cause, int code, int signal, Clock::time_point deadline);
  Orders release();

  int live_;
  EndRules rules_;
  Blame blame_;
  std::optional<Clock::time_point> failed_at_;  // the first failure
  bool released_ = false;
  bool cut_short_ = false;
  Cause cause_ = Cause::kNone;
  int exit_code_ = 0;
  std::optional<Blame::Verdict> failure_;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace lockstep::control
