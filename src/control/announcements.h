// All workers must come to some points of a program in the same order, such as a backward pass or a step. There each
// worker announces what it is about to do, in one short record.
//
// All announcements of a world share one channel. So workers that have come to different points meet there, and get a
// Mismatch that names both. On channels of their own each would wait for the other until the deadline.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/errors.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::control {

class Turns;

// The caller gives the numbers their meaning.
using Record = std::array<std::uint64_t, 8>;

// One announcement under way, with the records of all workers.
//
// Threads:   as Work.
// Blocking:  wait(), as Work::wait.
// Failure:   wait() throws Mismatch when a worker is in another call; PeerLost, Timeout.
// Ownership: shared with the Announcements, which keep it until every worker has spoken.
class Announcement {
 public:
  bool complete() const { return work_.done(); }
  void wait() const { work_.wait(); }
  // By rank, after wait().
  const std::vector<Record>& records() const { return records_; }

 private:
  friend class Announcements;
  std::vector<Record> records_;
  Work work_;
};

// The announcements of one world; World makes it at the first one.
//
// Threads:   one caller at a time.
// Blocking:  never; Announcement::wait() and collectives over comm() do.
// Failure:   what ended the world.
// Ownership: keeps the memory of every announcement under way.
class Announcements {
 public:
  explicit Announcements(Comm comm);
  ~Announcements();
  Announcements(const Announcements&) = delete;
  Announcements& operator=(const Announcements&) = delete;

  // Collective. `call` names what the worker is about to do, for errors (CallName).
  std::shared_ptr<const Announcement> say(const Record& record, std::string_view call);

  // For other collectives at such points, under a CallName: those of a SyncBatchNorm. They run after what was said before.
  Comm& comm() { return comm_; }

  // Workers have said different things: ends the world with this error on all workers, and throws it.
  [[noreturn]] void disagree(const Mismatch& difference);

  // A number for something that every worker makes in the same order; from 1.
  std::uint64_t next_number() { return ++numbers_; }

  // Who has a batch, in a loop of lockstep/uneven_inputs.h.
  Turns& turns() { return *turns_; }
  const Turns& turns() const { return *turns_; }

 private:
  std::uint64_t numbers_ = 0;
  std::unique_ptr<Turns> turns_;
  std::deque<std::shared_ptr<Announcement>> under_way_;
  Comm comm_;  // last: it ends the operations that still use the memory above
};

}  // namespace lockstep::control
