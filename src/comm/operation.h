// The life of an operation: it is queued, it runs on some thread, it ends with or without a
// failure.
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

// Operations that run one after the other. The thread of the executor runs them, or a caller that
// waits (help), or a caller that asks whether one is done (run_ready). Only one thread runs at a
// time.
//
// Threads:   any.
// Blocking:  run_until_stopped blocks until stop() was called and nothing is left. help blocks
//            while it runs operations itself.
class OperationQueue {
 public:
  ~OperationQueue();

  // `wake`: it must run soon, because peers need it. Else it may stay queued until somebody waits
  // for it.
  void push(std::shared_ptr<Operation> operation, bool wake);

  // Runs queued operations here, until `operation` has ended or another thread runs one. This saves
  // a caller that waits at once the switch to another thread. With a deadline it runs only
  // `operation` itself, and only if that can keep the deadline: a body that has not begun has a
  // deadline of its own, which may be later.
  void help(const Operation& operation);
  void help(const Operation& operation, Deadline deadline);

  // Runs the operations at the front that would not wait. True if every operation pushed has ended.
  bool run_ready();

  void run_until_stopped();
  void stop();

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

// One collective or message: a body that runs once, and what came of it. On a device the body only
// queues; a DeviceWork is the rest.
//
// Threads:   any.
// Blocking:  wait blocks until its deadline. A body ends by its own deadline.
// Failure:   wait throws what the body threw. The first failure of any operation ends the link.
// Ownership: keeps the link alive while the body may run.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  // Returns what the body leaves to a device; null on CPUs.
  using Body = std::function<std::shared_ptr<DeviceWork>()>;

  Operation(std::shared_ptr<Link> link, std::string how, Body body)
      : link_(std::move(link)), how_(std::move(how)), body_(std::move(body)) {}

  void queue_in(const std::shared_ptr<OperationQueue>& queue);

  // For an operation that has begun already: no peer needs anything from it until somebody waits
  // for it. Call set_begun before it is queued. Its queue calls the others.
  struct Begun {
    std::function<bool()> ready;          // the body would return at once
    std::function<void(Deadline)> limit;  // the body waits no longer than this
  };
  void set_begun(Begun begun) { begun_ = std::move(begun); }
  bool begun() const { return static_cast<bool>(begun_.ready); }
  bool ready() const { return begun_.ready && begun_.ready(); }
  void limit(Deadline deadline) const { begun_.limit(deadline); }

  // Runs the body here and now; once.
  void run() noexcept;

  bool done() const;  // the body has ended
  bool poll();        // everything has ended; runs the body if that would not wait
  void wait();
  void wait(Deadline deadline);
  void wait_on(void* stream);  // the host waits for the body only
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

// Throws Unavailable if this host allows no more threads.
std::thread start_thread(std::function<void()> body);

// For a call that has taken its number in an order that the peers follow, too. They wait for that
// number, so if the call fails, the link must end.
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

// Runs operations one after the other: on its own thread, which starts with the first operation
// that needs it, or on the thread of a caller that waits.
//
// Threads:   one caller at a time.
// Blocking:  the destructor waits for what is queued. End the link first if that must not take
//            long.
// Failure:   submit throws Unavailable if no thread can be started.
// Ownership: a child of fork() has a copy without the thread. It can only destroy the copy: what is
//            queued, and the locks, belong to its parent.
class Executor {
 public:
  Executor() : queue_(std::make_shared<OperationQueue>()) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void submit(const std::shared_ptr<Operation>& operation);

  // Every operation submitted has ended. Runs those that would not wait, to find out.
  bool idle() const { return queue_->run_ready(); }
  bool is_copy() const { return ::getpid() != pid_; }  // in a child of fork()

 private:
  std::shared_ptr<OperationQueue>
      queue_;  // outlives the executor in operations that are still waited for
  std::thread thread_;
  int pid_ = ::getpid();
};

}  // namespace lockstep::comm
