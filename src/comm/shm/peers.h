// How the other workers are: alive, ended with a reason, or dead.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "comm/core/failure.h"

namespace lockstep::comm {

// A thread that sleeps on the pidfds of the peers and calls `when_dead` as soon as one is no more.
//
// Threads:   when_dead is called on the watcher's thread.
// Blocking:  the destructor, until that thread has ended.
// Failure:   Unavailable from the constructor.
// Ownership: owns the descriptors.
class Watcher {
 public:
  struct Watched {
    int rank = -1;
    base::Fd pidfd;
  };
  Watcher(std::vector<Watched> watched, std::function<void(int rank)> when_dead);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void run(std::vector<pollfd>& entries);

  std::vector<Watched> watched_;
  std::function<void(int)> when_dead_;
  base::Pipe stop_;
  std::thread thread_;
};

}  // namespace lockstep::comm
