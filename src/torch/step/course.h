// What the workers of an asynchronous round share while it runs, in memory of the host:
//
//   weights, buffers   as the last update has left them. The state of the optimizer is beside the LocalModel
//   sum                with backups: of the gradients of the step under way
//   tasks              which were claimed, which are done
//   order              of the updates so far, and the losses of all tasks
//
// A worker that reads or writes any of it holds the turn. Successive rounds use the same memory: workers meet between two.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/deadline.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "plan/order.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::steps {

// Threads:   one caller at a time.
// Blocking:  the constructor, which is collective; when(), until the turn is free and its condition holds, at most the Comm's
//            timeout.
// Failure:   when(): PeerLost as soon as a worker has ended; Timeout, which ends the Comm. If a worker ends while it has the turn, what it wrote is
//            half written, and the round is lost: the next generation makes a new Course.
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
  Course(Comm& host, const Shape& shape);

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

  // A round begins for this worker. True, with the turn: for the first of all, which then fills in weights, state and buffers.
  bool open(std::int64_t steps);

  // Of a task, or of several: the losses of all samples, added up.
  struct Loss {
    double sum = 0;
    double samples = 0;
  };

  // With the turn, of the round under way.
  struct Counts {
    std::int64_t rounds = 0;  // that were opened
    std::int64_t steps = 0;
    std::int64_t claimed = 0;     // tasks
    std::int64_t begun = 0;       // tasks that have taken weights
    std::int64_t updates = 0;     // that were applied, or added to the sum
    std::int64_t in_weights = 0;  // of them, in the weights
    std::int64_t first_open = 0;  // the first step that is not done
    bool broken = false;          // an update was begun and not ended: nobody goes on
  };
  Counts& counts();
  std::int64_t tasks() { return counts().steps * shape_.shards; }
  std::byte* weights() const { return memory_.data() + weights_; }
  std::byte* buffers() const { return memory_.data() + buffers_; }
  std::byte* sum() const { return memory_.data() + sum_; }
  void note_update(const plan::OrderedUpdate& update);
  // A task is done; a step of the round, from 0 on. What all tasks of the step that are done have had.
  struct Done {
    std::int64_t tasks = 0;
    double samples = 0;
  };
  Done note_done(std::int64_t step, int shard, const Loss& loss);
  Done done(std::int64_t step) const { return at<Done>(done_)[step]; }
  // A step is done, and all before it.
  void end_step(std::int64_t step) { counts().first_open = step + 1; }
  Loss loss() const;  // of all tasks that are done, added up in their order
  std::vector<plan::OrderedUpdate> order();

  bool shared() const { return memory_.shared(); }

 private:
  struct Head;
  Head& head() const;
  Loss* losses() const;
  [[noreturn]] void give_up();
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  Comm& host_;
  Shape shape_;
  std::size_t weights_ = 0;
  std::size_t buffers_ = 0;
  std::size_t sum_ = 0;
  std::size_t done_ = 0;     // by step
  std::size_t losses_ = 0;   // by task
  std::size_t updates_ = 0;  // their order
  replica::FlatMemory memory_;
  std::int64_t rounds_ = 0;  // that this worker has opened
};

}  // namespace lockstep::steps
