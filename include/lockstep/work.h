// An operation under way.
#pragma once

#include <lockstep/deadline.h>

#include <memory>
#include <string>

namespace lockstep {

namespace comm {
class Operation;
}

// Threads:   any thread may wait; several may.
// Blocking:  wait() returns, or throws, by its deadline; without one, when the operation ends, which
//            takes at most the Comm's timeout from the moment it begins to run.
// Failure:   wait() throws what ended the operation. A wait that runs out of time ends the Comm,
//            so that the buffers are the caller's again when Timeout is thrown.
// Ownership: a handle; dropping it neither cancels nor waits. The operation's buffers stay borrowed
//            until it has completed.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<comm::Operation> operation) : operation_(std::move(operation)) {}

  void wait() const;
  void wait(Deadline deadline) const;

  // Makes work queued on a device stream after this call wait for the operation. The host waits until the operation is
  // queued, which takes all workers to have called it, and not for the device. A failure of the device's part is told
  // by the next call. On CPUs, the same as wait().
  void wait_on(void* stream) const;

  bool done() const;

  // What ran, and why it was chosen, such as "direct (asked for halving-doubling: 3 workers are no
  // power of two)".
  const std::string& how() const;

 private:
  std::shared_ptr<comm::Operation> operation_;
};

}  // namespace lockstep
