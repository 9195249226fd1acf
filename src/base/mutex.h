// std::mutex and its lock, annotated: clang's -Wthread-safety finds code that reads or writes guarded data without the
// mutex. Other compilers see nothing of it. The standard library's own mutexes are not annotated here.
//
//   LOCKSTEP_GUARDED_BY(mutex_)   a member: read and written only while the mutex is held
//   LOCKSTEP_REQUIRES(mutex_)     a function: the caller holds the mutex
#pragma once

#include <lockstep/deadline.h>

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define LOCKSTEP_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(attribute)
#endif

#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))

// For the classes below.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ATTRIBUTE(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable)
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))

namespace lockstep::base {

// Take it with a Lock.
class LOCKSTEP_CAPABILITY("mutex") Mutex {
 public:
  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

// Holds a Mutex as long as it lives. Wait for a condition in a loop of your own: clang cannot see that a lambda given
// to wait() runs with the mutex held.
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
  // False if the time given has come.
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
