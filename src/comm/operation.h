// An operation's life: waiting in a queue, running on a thread, ended with or without a failure.
#pragma once

#include <lockstep/deadline.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "comm/core/device.h"
#include "comm/core/link.h"

namespace lockstep::comm {

class Operation;

// Operations that run one after the other, whoever runs them.
//
// Threads:   any.
// Blocking:  run_until_stopped, until stop() and until nothing is left; help, while it runs
//            operations itself.
class OperationQueue {
 public:
  ~OperationQueue();

  // `wake`: somebody must run it soon, for the peers' sake. Else it may lie until it is waited for.
  void push(std::shared_ptr<Operation> operation, bool wake);

  // Runs what is queued, here, until `operation` has ended or somebody else is at it. Saves a
  // caller that waits at once the way through another thread. With a deadline only an operation that
  // keeps to it.
  void help(const Operation& operation);
  void help(const Operation& operation, Deadline deadline);

  // Runs those at the front that would not wait.
  void run_ready();

  void run_until_stopped();
  void stop();

  // Every operation pushed has ended.
  bool idle() const;

 private:
  // Gives the mutex back while the operation runs.
  void run_front() LOCKSTEP_REQUIRES(mutex_);

  int pid_ = ::getpid();
  mutable base::Mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<Operation>> queue_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<Operation> running_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// Threads:   any.
// Blocking:  wait, until its deadline; a body ends by its own.
// Failure:   wait throws what the body threw. The first failure of any operation ends the link.
// Ownership: keeps the link alive while the body may run.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  // What the body leaves to a device, nothing on CPUs.
  using Body = std::function<std::shared_ptr<DeviceWork>()>;

  Operation(std::shared_ptr<Link> link, std::string how, Body body)
      : link_(std::move(link)), how_(std::move(how)), body_(std::move(body)) {}

  void queue_in(const std::shared_ptr<OperationQueue>& queue);

  // Says that the operation has begun already and needs nobody's help until it is waited for, and
  // whether its body would return at once. To be called before it is queued; the others by its queue.
  struct Begun {
    std::function<bool()> ready;
    std::function<void(Deadline)> limit;  // the body waits no longer than that
  };
  void set_begun(Begun begun) { begun_ = std::move(begun); }
  bool begun() const { return static_cast<bool>(begun_.ready); }
  bool ready() const { return begun_.ready && begun_.ready(); }
  void limit(Deadline deadline) const { begun_.limit(deadline); }

  // Runs the body here and now; once.
  void run() noexcept;

  bool done() const;  // the body has ended
  bool poll();        // all has ended, if looking is enough for it
  void wait();
  void wait(Deadline deadline);
  void wait_on(void* stream);  // on the host only for the body
  const std::string& how() const { return how_; }

 private:
  void end(std::exception_ptr outcome, std::shared_ptr<DeviceWork> rest = nullptr);
  void wait_for_body();

  std::shared_ptr<Link> link_;
  std::string how_;
  Body body_;
  Begun begun_;
  std::shared_ptr<OperationQueue> queue_;
  mutable base::Mutex mutex_;
  std::condition_variable ended_;
  bool done_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::exception_ptr outcome_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<DeviceWork> rest_;  // written before done_, read after it
};

// Runs operations one after the other: on a thread of its own, which starts with the first of them,
// or on the thread of a caller that has nothing better to do than to wait.

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
