// The decisions of the launcher: when a job ends, why, and with which exit code. There are no processes and no clocks
// here, so that tests can try every order of events.
//
//   WorkerEnd   how one worker ended
//   Blame       which of several ends is the cause of the others
//   JobState    what to do about it
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/launch/restarts.h"

namespace lockstep::control {

inline constexpr int kSignalBase = 128;  // exit code 128 + S stands for signal S, as in shells

// The exit code of a job whose output cannot be written any more; `error` is the errno.
int output_closed_code(int error);

// How a worker ended.
struct WorkerEnd {
  enum class How : std::uint8_t { kExited, kKilled, kNotStarted };

  int rank = 0;
  How how = How::kExited;
  int value = 0;  // exit code, signal, or errno
  int pid = 0;    // 0: not known

  bool failed() const { return how != How::kExited || value != 0; }
  bool exited_with(int code) const { return how == How::kExited && value == code; }
  bool operator==(const WorkerEnd&) const = default;
};

// From a wait status of waitpid(2).
WorkerEnd worker_end(int rank, int wait_status);

// The exit code that a shell would give for it.
int exit_code(const WorkerEnd& end);

// "exited with code 7", "was killed by SIGSEGV (Segmentation fault)" …
std::string describe(const WorkerEnd& end);

// Whose end is the cause of the others'.
//
// When a worker fails, the others fail, too, and one of those may end first: a worker that catches its own error tells
// the others that it leaves, and then takes half a second to shut LibTorch down. So a worker that ends because it lost
// another one says so (control/rendezvous/loss.h), and Blame follows the trail:
//
//   first failure    the one that was noticed first. Of several noticed together: one that a signal killed, because
//                    the peers of a crashed worker exit with a code; then one that lost nobody
//   trail            from it to the worker that it lost, from there to the next …
//   cause            the end of the trail, if that worker has failed. If it still lives, it may be about to end
//
// Programs that are not Lockstep's say nothing: there the first failure is the cause.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: plain values.
class Blame {
 public:
  struct Verdict {
    WorkerEnd cause;
    std::optional<int> lost;  // the worker that the cause had lost, if its own failure is not known
    bool open = false;        // the lost worker lives: its end may change the verdict
  };

  // `rank` says that it cannot go on without `whom`, or, without `whom`, that it goes on. The last word counts.
  void on_loss(int rank, std::optional<int> whom);

  // Ends that were noticed together.
  void on_ends(const std::vector<WorkerEnd>& together);

  // It has ended, and the job goes on. Only a worker that cannot go on without it makes it a cause.
  void on_left(const WorkerEnd& end) { ends_.insert_or_assign(end.rank, end); }

  // A replacement of the worker with this number trains: what became of the one before does not count any more.
  void on_replaced(int rank) { ends_.erase(rank); }

  // Nothing as long as nobody has failed.
  std::optional<Verdict> verdict() const;

  // Whom this worker said that it lost.
  std::optional<int> lost_by(int rank) const;

  // How this worker ended; nothing while it lives.
  std::optional<WorkerEnd> end_of(int rank) const;

 private:
  std::map<int, int> losses_;  // who lost whom
  std::map<int, WorkerEnd> ends_;
  std::optional<WorkerEnd> first_;  // failure
};

// Times and exit codes by which a job ends.
struct EndRules {
  std::chrono::nanoseconds grace = std::chrono::seconds(10);  // after a signal, or a closed output
  // After a failure. Killing takes some time, too: the others have ended within 2 s.
  std::chrono::nanoseconds after_failure = std::chrono::milliseconds(1500);
  // The part of it in which a lost worker may end by itself, before the others are told to end.
  std::chrono::nanoseconds for_the_cause = std::chrono::milliseconds(1000);

  bool hangs_up = false;  // the output is a terminal whose hangup reaches this process

  std::vector<int> explained_codes;  // as in RunOptions
  std::optional<int> stopped_code;   // the same

  std::optional<Departures::Rules> elastic = {};  // workers may leave, and are replaced
};

// A worker that has left a job that goes on.
struct LeftWorker {
  WorkerEnd end;
  bool expelled = false;  // others waited for it in vain
  int live = 0;           // workers that go on: going_on()
  Departures::Outcome outcome;
};

// "rank 1 was killed by SIGKILL; 3 workers go on, and a replacement starts" … `waited_s` is how long others wait for a
// worker before it is expelled.
std::string describe(const LeftWorker& left, int max_restarts, double waited_s);

// A job from its start to its end:
//
//   running → judging    a worker failed because it lost another one, which lives: that one may end soon, as the cause
//   running → ending     a worker failed; a signal asked for the end; the output cannot be written; a host is lost
//   judging → ending     the cause is known, or the time for it is up
//   running → released   every worker has ended
//   ending → released    every worker has ended, the time to do so is up, or a second Ctrl-C came
//   released             what is left is being killed; nothing is forwarded any more
//
// The first cause of the end decides the exit code; what happens after it is a consequence. Output that is lost after
// every worker has ended well is a cause, too. If the terminal goes away, SIGHUP comes and output cannot be written, in
// any order: then the signal is the cause.
//
// With elastic rules, a worker that a signal kills while the job runs has left; so has one that fails because it lost such
// a worker, a replacement that cannot be started, and a newcomer that fails before it has joined the others. The job goes
// on, with a replacement or without one, as long as Departures allows it. All other failures end the job as ever. The job
// has succeeded when all that live have ended with 0, or when the last generation has: then who still lives came too late
// to join.
//
// Threads:   one caller at a time.
// Blocking:  never; time is an argument.
// Failure:   none.
// Ownership: plain values.
class JobState {
 public:
  using Clock = std::chrono::steady_clock;

  // What to do now.
  struct Orders {
    std::vector<int> forward;           // signals for all workers, in this order
    bool release = false;               // kill what is left
    std::vector<int> start = {};        // replacements of these workers
    std::vector<int> kill = {};         // these workers
    std::vector<LeftWorker> left = {};  // the job goes on without them: for the user
    std::optional<int> places = {};     // those that the job is to have are below this one
    std::vector<int> dismiss = {};      // these leave between two batches
  };
  enum class Cause : std::uint8_t {
    kNone,
    kSignal,
    kFailure,
    kOutputClosed,
    kKeeperLost,
    kHostLost
  };

  JobState(int workers, EndRules rules);

  // A worker says whom it lost, before it ends; or that it goes on.
  void on_loss(int rank, std::optional<int> whom) { blame_.on_loss(rank, whom); }
  // It has left its world, as at the end of a program.
  void on_goodbye(int rank);
  // Nobody can join the workers from here on.
  Orders on_closed();
  Orders on_ends(const std::vector<WorkerEnd>& together, Clock::time_point now);
  // Only with elastic rules: a process runs, a generation of these workers has formed, others wait for one in vain.
  void on_started(int rank, Clock::time_point now);
  void on_formed(const std::vector<int>& ranks);
  Orders on_expelled(int rank);
  // The job is to have so many workers. `refusal` says why not, as in "job 3fa9: it is ending".
  struct Resized {
    std::string refusal;
    Orders orders;
  };
  Resized on_resize(int workers, Clock::time_point now);
  // This worker is between two batches, and is not among those that the job is to have.
  Orders on_dismissed(int rank);
  Orders on_signal(int signal, Clock::time_point now);
  // Standard output or error cannot be written any more; `error` is the errno.
  Orders on_output_closed(int error, Clock::time_point now);
  Orders on_keeper_lost();
  // The host of these workers is lost: what became of them is not known.
  Orders on_host_lost(const std::vector<int>& ranks, Clock::time_point now);
  // The host of these workers is to leave. Nothing if the others cannot go on without them, or not between two batches.
  std::optional<Orders> on_host_leaves(const std::vector<int>& ranks, Clock::time_point now);
  // A host wants to join: why it cannot; empty: it can. And then it has, with these workers, which start.
  std::string objection_to_host() const;
  void on_host_joined(const std::vector<int>& ranks);
  Orders on_time(Clock::time_point now);

  // When on_time() wants to be called, if at all.
  std::optional<Clock::time_point> deadline() const;

  bool released() const { return ending_.released; }
  Cause cause() const { return cause_; }
  bool cut_short() const { return ending_.cut_short; }  // workers were told to end
  int live() const { return live_; }                    // processes
  // Workers that train: those of the last generation that live and are not being ended. Before the first one, and for
  // programs that never meet, the processes.
  int going_on() const;
  const std::optional<Blame::Verdict>& failure() const { return failure_; }
  // The worker that the first failure had lost, if it is known. Also while the job is being judged.
  std::optional<int> lost() const;
  std::optional<WorkerEnd> end_of(int rank) const { return blame_.end_of(rank); }
  bool explained(const WorkerEnd& end) const;  // the worker has told the user the reason itself
  int exit_code() const { return exit_code_; }
  int left() const { return departures_ ? departures_->left() : 0; }
  int replaced() const { return departures_ ? departures_->replaced() : 0; }
  bool expelled(int rank) const { return departures_ && departures_->expelled(rank); }
  // Some workers have reached the end of the job.
  bool finishing() const { return departures_ && departures_->finishing(); }
  // How many workers the job is to have, and can have at the most, if that can change.
  std::optional<int> wanted() const;
  std::optional<int> most() const;

 private:
  bool running() const { return cause_ == Cause::kNone && !failed_at_ && !ending_.released; }
  bool over() const;
  std::vector<WorkerEnd> depart(std::vector<WorkerEnd> together, Orders& orders,
                                Clock::time_point now);
  bool leaves(const WorkerEnd& end, const std::vector<WorkerEnd>& together) const;
  bool left_with_another(const WorkerEnd& end, const std::vector<WorkerEnd>& together) const;
  void hold_back(std::vector<WorkerEnd>& ends, Clock::time_point now);
  std::vector<int> restart(Clock::time_point now);
  std::vector<int> overdue(Clock::time_point now);
  Orders judge(Clock::time_point now);
  Orders end_for_failure(Clock::time_point now);
  Orders end(Cause cause, int code, int signal, Clock::time_point deadline);
  Orders release();

  int live_;
  EndRules rules_;
  Blame blame_;
  std::optional<Clock::time_point> failed_at_;  // the first failure
  struct Ending {
    bool released = false;
    bool cut_short = false;
    int told = 0;  // the signal by which workers were told to end
  };
  Ending ending_;
  Cause cause_ = Cause::kNone;
  int exit_code_ = 0;
  std::optional<Blame::Verdict> failure_;
  std::optional<Clock::time_point> deadline_;
  std::optional<Departures> departures_;
  // Failures of workers that lost one that lives: if that one turns out to be dying, they have left with it.
  struct Held {
    std::vector<WorkerEnd> ends;
    std::optional<Clock::time_point> until;
  };
  Held held_;
  // Hosts that are to leave, until when they have the time to.
  struct Leaving {
    std::vector<int> ranks;
    Clock::time_point until;
  };
  std::vector<Leaving> leaving_;
};

}  // namespace lockstep::control
