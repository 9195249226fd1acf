// The workers of one host as a link sees them: everybody's segment, who has died, and what each has said of its end.
#pragma once

#include <lockstep/deadline.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "comm/core/failure.h"
#include "comm/core/link.h"
#include "comm/shm/segment.h"

namespace lockstep::comm {

// How the other workers are: alive, ended with a reason, or dead.

// A thread that sleeps on the pidfds of the peers and calls `when_dead` as soon as one is no more.
//
// Threads:   when_dead is called on the monitor's thread.
// Blocking:  the destructor, until that thread has ended.
// Failure:   Unavailable from the constructor.
// Ownership: owns the descriptors.
class ShmMonitor {
 public:
  struct Watched {
    int rank = -1;
    base::Fd pidfd;
  };
  ShmMonitor(std::vector<Watched> watched, std::function<void(int rank)> when_dead);
  ~ShmMonitor();
  ShmMonitor(const ShmMonitor&) = delete;
  ShmMonitor& operator=(const ShmMonitor&) = delete;

 private:
  void run(std::vector<pollfd>& entries);

  std::vector<Watched> watched_;
  std::function<void(int)> when_dead_;
  base::Pipe stop_;
  std::thread thread_;
};

// Threads:   any.
// Blocking:  heard_from, until its deadline.
// Ownership: keeps the segments.
class ShmWorkers {
 public:
  ShmWorkers(int rank, std::vector<Segment> segments)
      : rank_(rank), segments_(std::move(segments)), dead_(segments_.size()) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(segments_.size()); }
  const std::vector<Segment>& segments() const { return segments_; }
  const Segment& of(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }
  const Segment& own() const { return of(rank_); }

  bool is_dead(int rank) const { return dead_[static_cast<std::size_t>(rank)].load(); }
  // Wakes whoever waits here for that worker.
  void note_death(int rank);

  // Why another worker has ended, as far as is known here; nothing if it has not.
  std::optional<Failure> end_of(int rank) const;

  // What another worker tells, once it does.
  std::optional<Failure> heard_from(int peer, Deadline deadline) const noexcept;

 private:
  int rank_;
  std::vector<Segment> segments_;
  std::vector<std::atomic<bool>> dead_;
};

}  // namespace lockstep::comm
