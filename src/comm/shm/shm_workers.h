// The workers of one host as a link sees them: their segments, which of them have died, and why
// each has ended.
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

// A thread that sleeps on the pidfds of the peers and calls `when_dead` as soon as one has died. A
// killed worker writes no notice, so only its process shows its end.
//
// Threads:   when_dead is called on the monitor's thread.
// Blocking:  the destructor waits until that thread has ended.
// Failure:   the constructor throws Unavailable.
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

// All segments, and the state of every other worker: alive, ended with a reason, or dead.
//
// Threads:   any.
// Blocking:  heard_from blocks until its deadline.
// Failure:   none.
// Ownership: owns the segments.
class ShmWorkers {
 public:
  ShmWorkers(int rank, std::vector<Segment> segments)
      : rank_(rank), segments_(std::move(segments)), dead_(segments_.size()) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(segments_.size()); }
  const std::vector<Segment>& segments() const { return segments_; }
  const Segment& of(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }
  const Segment& own() const { return of(rank_); }

  // There are more workers than cores on which any of them may run.
  bool crowded() const;

  bool is_dead(int rank) const { return dead_[static_cast<std::size_t>(rank)].load(); }
  // Wakes the threads that wait here for that worker.
  void note_death(int rank);

  // Why another worker has ended, if that is known here. Nothing if it has not ended.
  std::optional<Failure> end_of(int rank) const;

  // What another worker has told; waits for it until the deadline.
  std::optional<Failure> heard_from(int peer, Deadline deadline) const noexcept;

 private:
  int rank_;
  std::vector<Segment> segments_;
  std::vector<std::atomic<bool>> dead_;
};

}  // namespace lockstep::comm
