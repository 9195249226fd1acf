// A thread that cannot start, as on a host that allows no more of them.
#pragma once

namespace lockstep::testing {

// Of the threads that the calling thread starts while this lives, the one after `others` is refused, and no other.
//
// Threads:   the one that made it; others start theirs as before.
class RefusedThread {
 public:
  explicit RefusedThread(int others);
  ~RefusedThread();
  RefusedThread(const RefusedThread&) = delete;
  RefusedThread& operator=(const RefusedThread&) = delete;

  bool happened() const;
};

}  // namespace lockstep::testing
