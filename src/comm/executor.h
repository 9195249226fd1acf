// Runs operations one after the other: on a thread of its own, which starts with the first of them,
// or on the thread of a caller that has nothing better to do than to wait.
#pragma once

#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "comm/operation.h"

namespace lockstep::comm {

// Unavailable when this host allows no more.
std::thread start_thread(std::function<void()> body);

// For what has its number in an order that the peers follow: they wait for it, so when the call fails the link does.
template <typename Call>
decltype(auto) or_end(Link& link, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const Failure failure = failure_of(link.rank(), error);
    link.fail(failure);
    raise(failure);
  }
}

// Threads:   one caller at a time.
// Blocking:  the destructor waits for what is queued: end the link first when that must not take long.
// Failure:   submit throws Unavailable when there is no thread to be had.
// Ownership: a child of fork() has a copy without the thread, which it can destroy and nothing else: what is queued, and
//            the locks, are its parent's.
class Executor {
 public:
  Executor() : queue_(std::make_shared<OperationQueue>()) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void submit(const std::shared_ptr<Operation>& operation);

  // Every operation submitted has ended; those that would not wait are run for it.
  bool idle() const {
    if (is_copy()) return true;
    queue_->run_ready();
    return queue_->idle();
  }

 private:
  bool is_copy() const { return ::getpid() != pid_; }

  std::shared_ptr<OperationQueue>
      queue_;  // outlives the executor in operations that are still waited for
  std::thread thread_;
  int pid_ = ::getpid();
};

}  // namespace lockstep::comm
