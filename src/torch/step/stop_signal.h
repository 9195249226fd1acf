// SIGTERM, by which schedulers such as Slurm announce that they will take the machine away.
#pragma once

namespace lockstep::steps {

// As long as one lives, SIGTERM does not end the process, and is noted for its loop, which then stops in order. If the
// program handles or ignores the signal itself, nothing changes.
//
// Threads:   any.
// Blocking:  never.
// Failure:   none.
// Ownership: the handler belongs to the process: the first one sets it, the last one takes it away.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Whether it has come while one lived. Stays so: a loop that begins later stops, too.
  static bool has_come() noexcept;
};

}  // namespace lockstep::steps
