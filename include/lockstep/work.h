// The handle on one operation.
#pragma once

#include <lockstep/deadline.h>

#include <memory>
#include <string>

namespace lockstep {

namespace comm {
class Operation;
}

// One collective or message that was started. An empty Work counts as done.
//
// Threads:   any thread may wait, also several at once.
// Blocking:  wait(deadline) returns, or throws, by its deadline. wait() returns when the operation
//            has ended: at most the Comm's timeout after it began to run.
// Failure:   wait() throws what ended the operation. If a wait passes its deadline, it ends the
//            Comm, so that the buffers belong to the caller again when it throws Timeout.
// Ownership: a handle. Destroying it neither cancels the operation nor waits for it. The buffers of
//            the operation stay borrowed until the operation has completed.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<comm::Operation> operation) : operation_(std::move(operation)) {}

  void wait() const;
  void wait(Deadline deadline) const;

  // Work that is queued on `stream` after this call runs after the operation. The host waits only
  // until the operation is queued on the device, which needs all workers to have called it. If the
  // operation fails on the device, the next call throws. On CPUs it is the same as wait().
  void wait_on(void* stream) const;

  bool done() const;

  // The algorithm that ran, and why it was chosen, such as "direct (asked for halving-doubling:
  // 3 workers are no power of two)".
  const std::string& how() const;

 private:
  std::shared_ptr<comm::Operation> operation_;
};

}  // namespace lockstep
