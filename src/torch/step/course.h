// What the workers of an asynchronous round share while it runs, in memory of the host:
//
//   weights, buffers   as the last update has left them. The state of the optimizer is beside the LocalModel
//   tasks              which were claimed, which are done
//   order              of the updates so far, and the losses of all tasks
//
// Whoever reads or writes any of it holds the turn. The rounds after each other use the same memory: workers meet between two.
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
// Failure:   when(): PeerLost as soon as a worker has ended, Timeout. If a worker ends while it has the turn, what it wrote is
//            half written, and the round is lost: the next generation makes a new Course.
// Ownership: owns the memory; borrows the Comm.
class Course {
 public:
  struct Shape {
    std::size_t weights = 0;  // bytes
    std::size_t buffers = 0;
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
  Turn when(const Condition& condition);
  Turn now() {
    return when([] { return true; });
  }

  // A round begins for this worker. True, with the turn: for the first of all, which then fills in weights, state and buffers.
  bool open(std::int64_t steps);

  // With the turn, of the round under way.
  struct Counts {
    std::int64_t rounds;  // that were opened
    std::int64_t steps;
    std::int64_t claimed;     // tasks
    std::int64_t begun;       // tasks that have taken weights
    std::int64_t updates;     // that were applied
    std::int64_t done;        // tasks: applied, or without samples
    std::int64_t first_open;  // the first step with a task that is not done
  };
  Counts& counts();
  std::int64_t tasks() { return counts().steps * shape_.shards; }
  std::byte* weights() const { return memory_.data() + weights_; }
  std::byte* buffers() const { return memory_.data() + buffers_; }
  void note_update(const plan::OrderedUpdate& update);
  void note_done(std::int64_t step, int shard, double loss);  // steps of the round, from 0
  double loss(std::int64_t step, int shard) const;
  std::vector<plan::OrderedUpdate> order();

  bool shared() const { return memory_.shared(); }

 private:
  struct Head;
  Head& head() const;
  double* losses() const;
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  Comm& host_;
  Shape shape_;
  std::size_t weights_ = 0;
  std::size_t buffers_ = 0;
  std::size_t done_ = 0;     // by step: how many of its tasks are done
  std::size_t losses_ = 0;   // by task
  std::size_t updates_ = 0;  // their order
  replica::FlatMemory memory_;
  std::int64_t rounds_ = 0;  // that this worker has opened
};

}  // namespace lockstep::steps
