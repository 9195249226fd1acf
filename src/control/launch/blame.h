// Whose end is the cause of the others': a decision, without processes or clocks.
//
// A worker that fails takes the others with it, and one of those may end sooner: a worker whose program catches its own
// error tells the others that it leaves, then takes LibTorch down for half a second. So a worker that ends because it
// lost another one says so (control/rendezvous/loss.h), and the trail is followed:
//
//   first failure    the one that was noticed first; of several together, one that a signal killed, since the peers
//                    of a crashed worker exit with a code, and one that lost nobody
//   trail            from it to the worker that it lost, to the one that that one lost …
//   cause            the end of the trail, if it has failed. If it still lives, its own end may be about to come
//
// Programs that are not Lockstep's say nothing: there the first failure is the cause.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "control/launch/worker_end.h"

namespace lockstep::control {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: plain values.
class Blame {
 public:
  struct Verdict {
    WorkerEnd cause;
    std::optional<int> lost;  // the worker that the cause had lost, if its own failure is not known
    bool open = false;        // that one lives: its end may change the verdict
  };

  // `rank` says that it cannot go on without `whom`; nobody: that it goes on. The last word counts.
  void on_loss(int rank, std::optional<int> whom);

  // Ends that were noticed together.
  void on_ends(const std::vector<WorkerEnd>& together);

  // Nothing as long as nobody has failed.
  std::optional<Verdict> verdict() const;

  // How this worker ended; nothing while it lives.
  std::optional<WorkerEnd> end_of(int rank) const;

 private:
  std::optional<int> lost_by(int rank) const;

  std::map<int, int> losses_;  // who lost whom
  std::map<int, WorkerEnd> ends_;
  std::optional<WorkerEnd> first_;  // failure
};

}  // namespace lockstep::control
