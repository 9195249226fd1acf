#include "comm/operation.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/work.h>

#include <exception>
#include <system_error>
#include <utility>

namespace lockstep::comm {

// In a child of fork() there is no thread, but the condition variable still counts the parent's
// thread as a sleeper. Its destructor would wait for that thread for ever, so the child leaks it.
OperationQueue::~OperationQueue() {
  if (::getpid() != pid_) static_cast<void>(changed_.release());
}

void OperationQueue::push(std::shared_ptr<Operation> operation, bool wake) {
  const base::Lock lock(mutex_);
  queue_.push_back(std::move(operation));
  if (wake) changed_->notify_all();
}

void OperationQueue::stop() {
  const base::Lock lock(mutex_);
  stopping_ = true;
  changed_->notify_all();
}

void OperationQueue::run_front() {
  const std::shared_ptr<Operation> operation = queue_.front();
  queue_.pop_front();
  running_ = operation;
  {
    const base::Unlock unlocked(mutex_);
    operation->run();
  }
  running_.reset();
  if (stopping_ || !queue_.empty()) changed_->notify_all();  // or there is nothing to wake up for
}

void OperationQueue::help(const Operation& operation) {
  const base::Lock lock(mutex_);
  while (!operation.done() && !running_ && !queue_.empty()) run_front();
}

void OperationQueue::help(const Operation& operation, Deadline deadline) {
  const base::Lock lock(mutex_);
  if (running_ || queue_.empty() || queue_.front().get() != &operation || !operation.begun())
    return;
  operation.limit(deadline);
  run_front();
}

bool OperationQueue::run_ready() {
  const base::Lock lock(mutex_);
  while (!running_ && !queue_.empty() && queue_.front()->ready()) run_front();
  return queue_.empty() && (!running_ || running_->done());
}

void OperationQueue::run_until_stopped() {
  base::Lock lock(mutex_);
  while (true) {
    while (running_ || (!stopping_ && queue_.empty())) lock.wait(*changed_);
    if (queue_.empty()) return;
    run_front();
  }
}

void Operation::queue_in(const std::shared_ptr<OperationQueue>& queue) {
  queue_ = queue;
  queue->push(shared_from_this(), !begun());
}

void Operation::run() noexcept {
  try {
    if (const auto failure = link_->failure()) raise(*failure);
    end(nullptr, body_());
  } catch (const Error& error) {
    link_->fail(failure_from(error));
    end(std::current_exception());
  } catch (const std::exception& error) {
    const Failure failure = failure_of(link_->rank(), error);
    link_->fail(failure);
    end(std::make_exception_ptr(Unavailable(failure.text, failure.ranks)));
  }
}

void Operation::end(std::exception_ptr outcome, std::shared_ptr<DeviceWork> rest) {
  body_ = nullptr;
  begun_ = {};
  // A Work may outlive its Comm. It must not keep the link alive, because the link's destructor
  // leaves the world. The last reference goes after the lock: `released` is declared first.
  std::shared_ptr<Link> released;
  const base::Lock lock(mutex_);
  released.swap(link_);
  outcome_ = std::move(outcome);
  rest_ = std::move(rest);
  done_ = true;
  ended_.notify_all();
}

bool Operation::done() const {
  const base::Lock lock(mutex_);
  return done_;
}

bool Operation::poll() {
  if (!done() && queue_) queue_->run_ready();
  return done() && (!rest_ || rest_->done());
}

void Operation::wait_for_body() {
  if (queue_) queue_->help(*this);
  base::Lock lock(mutex_);
  while (!done_) lock.wait(ended_);
  if (outcome_) std::rethrow_exception(outcome_);
}

void Operation::wait() {
  wait_for_body();
  if (rest_) rest_->wait();
}

void Operation::wait_on(void* stream) {
  wait_for_body();
  if (rest_) rest_->wait_on(stream);
}

void Operation::wait(Deadline deadline) {
  if (queue_) queue_->help(*this, deadline);
  {
    base::Lock lock(mutex_);
    while (!done_ && lock.wait_until(ended_, deadline.when())) continue;
    if (!done_) {
      const auto link = link_;
      lock.unlock();
      // The body uses the caller's buffers. End it, so that they are free when this throws.
      link->fail({ErrorKind::kTimeout,
                  {},
                  fmt::format("rank {} gave up waiting for {} at the caller's deadline",
                              link->rank(), how_)});
    }
  }
  wait_for_body();
  if (rest_) rest_->wait(deadline);
}

std::thread start_thread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error&) {
    throw Unavailable("this host allows no more threads; raise `ulimit -u`, or use fewer channels");
  }
}

Executor::~Executor() {
  if (is_copy()) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  queue_->stop();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    queue_->run_until_stopped();  // operations that had begun and needed no thread
  }
}

void Executor::submit(const std::shared_ptr<Operation>& operation) {
  if (!thread_.joinable() && !operation->begun())
    thread_ = start_thread([this] { queue_->run_until_stopped(); });
  operation->queue_in(queue_);
}

}  // namespace lockstep::comm

namespace lockstep {

void Work::wait() const {
  if (operation_) operation_->wait();
}

void Work::wait(Deadline deadline) const {
  if (operation_) operation_->wait(deadline);
}

void Work::wait_on(void* stream) const {
  if (operation_) operation_->wait_on(stream);
}

bool Work::done() const {
  return !operation_ || operation_->poll();
}

const std::string& Work::how() const {
  static const std::string nothing = "nothing to do";
  return operation_ ? operation_->how() : nothing;
}

}  // namespace lockstep
