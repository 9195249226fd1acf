// A worker that cannot go on without another one tells its launcher which one it lost. So the launcher can name that
// one as the cause. The order in which processes end does not say it: a worker that heard of a failure may end before
// the worker that failed.
//
// Workers also tell which faults strike them (control/faults.h): it must be told before they do.
//
// Each loss is one record on a socket that every worker inherits, LOCKSTEP_LOSS_FD. Other launchers have no such
// socket.
#pragma once

#include <lockstep/errors.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/fd.h"

namespace lockstep::control {

// The record, as it travels.
struct Loss {
  static constexpr std::int32_t kNobody = -1;   // it has joined a world again
  static constexpr std::int32_t kGoodbye = -2;  // it has left its world, as at the end of a program
  static constexpr std::int32_t kClosed = -3;   // nobody can join its world from here on
  // And below: it is about to suffer the fault with this number in LOCKSTEP_FAULTS, counted from here.
  static constexpr std::int32_t kFirstFault = -16;

  std::int32_t rank = -1;       // who speaks
  std::int32_t whom = kNobody;  // whom it lost

  bool operator==(const Loss&) const = default;
};

// Which worker `rank` has lost, if it failed in this way: the first of `ranks`. Nothing if the failure is about this
// worker itself, or about something that workers disagree on.
std::optional<Loss> loss_of(int rank, ErrorKind kind, const std::vector<int>& ranks);

// Both ends of a channel for losses. They close on exec, and records stay whole. Unavailable without descriptors.
struct LossChannel {
  base::Fd launcher;
  base::Fd workers;
};
LossChannel make_loss_channel();

// A worker's end.
//
// Threads:   any.
// Blocking:  never: what cannot be sent at once is dropped.
// Failure:   none; a descriptor that is no such channel stays unused.
// Ownership: a duplicate of the inherited descriptor. It closes on exec: programs that the worker starts do not get it.
class LossTeller {
 public:
  explicit LossTeller(std::optional<int> inherited);

  void tell(const Loss& loss) const noexcept;

 private:
  base::Fd socket_;
};

// The launcher's end: the next record; nothing when there is none now.
std::optional<Loss> take_loss(int socket);

}  // namespace lockstep::control
