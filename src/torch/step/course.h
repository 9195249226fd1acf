// What the workers of an asynchronous round share while it runs, in memory of the host:
//
//   weights, buffers   as the last update has left them. The state of the optimizer is beside the LocalModel
//   sum                with backups: of the gradients of the step under way
//   book               of its tasks (plan/tasks.h)
//
// A worker that reads or writes any of it holds the turn. Successive rounds use the same memory: workers meet between two. If a
// worker is lost in a round, the others go on with what is there, unless it was about to change it.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/deadline.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "plan/tasks.h"
#include "torch/replica/flat_memory.h"
#include "torch/step/round_reports.h"

namespace lockstep::steps {

// Threads:   one caller at a time.
// Blocking:  the constructor, which is collective; when(), until the turn is free and its condition holds, at most the Comm's
//            timeout.
// Failure:   when(): PeerLost as soon as a worker has ended; Timeout, which ends the Comm.
// Ownership: owns the memory; borrows the Comm.
class Course {
 public:
  struct Shape {
    std::size_t weights = 0;  // bytes
    std::size_t buffers = 0;
    std::size_t sum = 0;
    std::int64_t steps = 0;  // of the longest round
    int shards = 0;
  };
  // A round that `before`, which survivors have, was in the middle of goes on in this one. All survivors have the same there; the
  // worker that fills the memory copies it.
  struct Before {
    const Course* course = nullptr;  // null: nothing goes on, or this worker is new
    bool copies = false;
  };
  Course(Comm& host, const Shape& shape, const Before& before);

  // While it lives, no other worker has the turn.
  class [[nodiscard]] Turn {
   public:
    explicit Turn(std::atomic<std::uint32_t>& word) : word_(&word) {}
    Turn(Turn&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (word_ != nullptr) word_->store(0, std::memory_order_release);
    }

   private:
    std::atomic<std::uint32_t>* word_;
  };
  using Condition = std::function<bool()>;
  // Calls `waits` if it must wait.
  Turn when(
      const Condition& condition, const std::function<void()>& waits = [] {});
  Turn now() {
    return when([] { return true; });
  }

  // A round begins for this worker, after so many steps of the job; with the turn. kNew: for the first of all, which then fills in
  // weights, state and buffers, clears the book, and calls wrote(). kGoesOn: workers of the generation before have begun it, and
  // it has what they had done.
  enum class Opened { kNew, kByAnother, kGoesOn };
  Opened open(std::int64_t steps);
  // With the turn: around each change of weights, state, buffers, sum and book. If a worker dies between the two, nobody goes on
  // with the round.
  void will_write();
  void wrote();
  bool is_half_written() const;
  // Whether the round that began after so many steps was opened, and nothing of it is half written. Workers that have committed the
  // same steps say the same when nobody trains.
  bool is_whole(std::int64_t steps) const;

  std::int64_t updates() const;  // of the last round, so far
  // What this worker's tasks of that round have reported.
  RoundReports& reports() { return reports_; }

  std::byte* weights() const { return memory_.data() + weights_; }
  std::byte* buffers() const { return memory_.data() + buffers_; }
  std::byte* sum() const { return memory_.data() + sum_; }
  plan::TaskBook::Memory book() const;

  bool shared() const { return memory_.shared(); }

 private:
  struct Head;
  Head& head() const;
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  Comm& host_;
  std::size_t weights_ = 0;
  std::size_t buffers_ = 0;
  std::size_t sum_ = 0;
  std::size_t done_ = 0;     // by step
  std::size_t losses_ = 0;   // by task
  std::size_t updates_ = 0;  // their order
  replica::FlatMemory memory_;
  std::int64_t rounds_ = 0;  // that this worker has opened
  RoundReports reports_;
};

}  // namespace lockstep::steps
