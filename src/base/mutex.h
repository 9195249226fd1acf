// std::mutex and its lock, annotated: clang tells who reads what a mutex guards without holding it.
#pragma once

#include <lockstep/deadline.h>

#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"

namespace lockstep::base {

class LOCKSTEP_CAPABILITY("mutex") Mutex {
 public:
  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

// Holds a Mutex as long as it lives. A condition is waited for in a loop, where clang sees that what it reads is guarded:
//     while (!done_) lock.wait(changed_);
class LOCKSTEP_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) LOCKSTEP_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~Lock() LOCKSTEP_RELEASE() {}  // NOLINT: an annotation needs a body
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void unlock() LOCKSTEP_RELEASE() { lock_.unlock(); }

  // The mutex is held when these return.
  void wait(std::condition_variable& changed) { changed.wait(lock_); }
  // False at the time given.
  bool wait_until(std::condition_variable& changed, Deadline::Clock::time_point when) {
    return changed.wait_until(lock_, when) == std::cv_status::no_timeout;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

// Releases a Mutex that is held, and takes it again at its end: for the slow part of a function that is called with the
// mutex held.
class LOCKSTEP_SCOPED_CAPABILITY Unlock {
 public:
  explicit Unlock(Mutex& mutex) LOCKSTEP_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  // For clang the end of a scope undoes its beginning, and is always called a release.
  ~Unlock() LOCKSTEP_RELEASE() { mutex_.lock(); }
  Unlock(const Unlock&) = delete;
  Unlock& operator=(const Unlock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace lockstep::base
