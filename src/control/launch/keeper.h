// The keeper: a small process between the launcher and the workers, so that nothing outlives the
// launcher even when it is killed.
//
//   launcher ── keeper ── worker 0, worker 1 …
//
// A process that gets SIGKILL runs no more code, so it cannot end its own workers: another process
// has to notice its end.
//
// The keeper starts the workers, reports how they end, passes signals on, and starts replacements if the launcher orders
// it. When its lifeline closes, because the launcher wants it or is gone, it kills everything below itself and exits. Both
// it and the launcher are child subreapers: processes that workers start stay below them. If the
// keeper itself is killed, its workers die with it (PR_SET_PDEATHSIG), and the launcher ends the rest.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace lockstep::control {

// One message from the keeper; shorter than PIPE_BUF, so that messages never mix.
struct KeeperEvent {
  enum class Kind : std::int32_t {
    kStarted = 1,      // pid
    kEnded = 2,        // value: wait status
    kNotStarted = 3,   // value: errno of fork; or of exec, with the pid: then its end follows
    kAllReported = 4,  // the ends since the last of these were noticed together
    kSwept = 5,        // value: how many processes workers had left behind
  };
  Kind kind = Kind::kStarted;
  std::int32_t rank = -1;
  std::int32_t pid = 0;
  std::int32_t value = 0;
};

// One message to the keeper; as short.
struct KeeperOrder {
  enum class Kind : std::int32_t {
    kSignal = 1,  // value: for all workers
    kStart = 2,   // value: a worker whose process has ended
    kKill = 3,    // value: a worker; it and its process group
    kSize = 4,    // value: how many workers the job is to have from now on
  };
  Kind kind = Kind::kSignal;
  std::int32_t value = 0;
};

// What a worker is told of when it was started.
struct WorkerStart {
  int workers = 0;   // that the job is to have on this host
  int restarts = 0;  // of this worker, so far
  int estate = -1;   // its socket to the keeper (rendezvous/estate.h); −1: none
};

// What the keeper starts, and how.
struct KeeperPlan {
  std::string program;
  // By worker, counted on this host from 0.
  std::function<std::vector<std::string>(int worker)> arguments;
  std::function<std::vector<std::string>(int worker, const WorkerStart& start)> environment;
  std::vector<base::Pipe>
      outputs;  // two per worker, stdout then stderr; workers get the write ends
  bool leader_keeps_output = false;    // worker 0 writes to the launcher's outputs itself
  int input = -1;                      // standard input of worker 0; the others read nothing
  std::vector<base::Pipe> inputs;      // or one for each worker, which gets the read end
  std::vector<std::vector<int>> cpus;  // that each worker may use; empty: as the launcher
  // These are the only other descriptors that workers inherit.
  int secret = -1;
  int losses = -1;
  int news = -1;
  // Workers may be started again: the keeper keeps what that needs. And if a signal kills a worker, the rest of its
  // process group is killed, too: nothing of it must run beside its replacement.
  bool restarts = false;
  // What the launcher was started with; workers get it back.
  rlimit open_files{};
  sigset_t signal_mask{};

  int workers = 0;  // to start at once; the other places stay empty until an order comes
  int places() const { return static_cast<int>(outputs.size() / 2); }
};

// The launcher's side of a started keeper.
struct Keeper {
  pid_t pid = -1;
  base::Fd events;    // reads KeeperEvent; its end means that the keeper is gone
  base::Fd lifeline;  // writes KeeperOrder; closing it ends everything
};

// Forks the keeper and closes the workers' ends of plan.outputs and plan.inputs in the launcher. The caller has one
// thread and has blocked SIGCHLD and SIGPIPE. Unavailable if no process can be started.
Keeper start_keeper(KeeperPlan& plan);

}  // namespace lockstep::control
