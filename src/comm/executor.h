// Runs operations one after the other: on a thread of its own, which starts with the first of them,
// or on the thread of a caller that has nothing better to do than to wait.
#pragma once

#include <memory>
#include <thread>

#include "comm/operation.h"

namespace lockstep::comm {

// Threads:   one caller at a time.
// Blocking:  the destructor waits for what is queued: end the link first when that must not take long.
class Executor {
 public:
  Executor() : queue_(std::make_shared<OperationQueue>()) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void submit(const std::shared_ptr<Operation>& operation);

  // Every operation submitted has ended; those that would not wait are run for it.
  bool idle() const {
    queue_->run_ready();
    return queue_->idle();
  }

 private:
  std::shared_ptr<OperationQueue>
      queue_;  // outlives the executor in operations that are still waited for
  std::thread thread_;
};

}  // namespace lockstep::comm
