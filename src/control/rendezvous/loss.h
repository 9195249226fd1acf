// What a worker says to its launcher when it cannot go on without another one, so that the launcher can name that one as
// the cause. Without it the launcher sees processes end, and one that was told of a failure may end before the one that
// failed.
//
// One record travels over a socket that every worker inherits, LOCKSTEP_LOSS_FD. Under other launchers there is none.
#pragma once

#include <lockstep/errors.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/fd.h"

namespace lockstep::control {

struct Loss {
  static constexpr std::int32_t kNobody = -1;  // it has joined a world again

  std::int32_t rank = -1;       // who speaks
  std::int32_t whom = kNobody;  // whom it lost

  bool operator==(const Loss&) const = default;
};

// Whom `rank` lost when it failed so: the first that the failure is about. Nothing when it is about this worker itself,
// or about what workers disagree on.
std::optional<Loss> loss_of(int rank, ErrorKind kind, const std::vector<int>& ranks);

// Both ends of a channel for losses; close-on-exec, and records stay whole. Unavailable without descriptors.
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
// Ownership: a duplicate of the inherited descriptor, which programs that the worker starts do not get.
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
