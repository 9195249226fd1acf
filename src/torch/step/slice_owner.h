// A worker's slice of the weights and of the optimizer's state in an asynchronous round without shared memory, and the log that says
// what becomes of it (plan/clerk.h).
#pragma once

#include <lockstep/comm.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "plan/clerk.h"
#include "torch/step/asynchronous_round.h"
#include "torch/step/letters.h"
#include "torch/step/slices.h"

namespace lockstep::steps {

// Threads:   one caller at a time.
// Blocking:  gather(), which is collective; at most the Comm's timeout.
// Failure:   gather() as Comm.
// Ownership: borrows the setting and the cut.
class SliceOwner {
 public:
  using Bytes = Letterbox::Bytes;
  // It begins with the weights and the state that the model has.
  SliceOwner(const AsynchronousRound::Setting& its, const Cut& cut, int rank);

  void enter(const plan::Clerk::LogEntry& entry) { log_.push_back(entry); }
  // A part of a gradient has come (Cut).
  void receive(std::int64_t task, double factor, Bytes bytes);
  // Does what is next in the log, and returns it. Nothing: it has to wait for a gradient, or there is nothing to do.
  std::optional<plan::Clerk::LogEntry> follow();
  Bytes given() const;

  // At the end of a round: everybody gets everything from its owner.
  void gather(Comm& comm);
  const std::byte* weights() const { return own_.weights.data(); }
  const std::vector<SliceMemory>& states() const { return own_.states; }
  const Bytes& buffers() const { return buffers_; }

 private:
  struct Memories {
    explicit Memories(std::size_t bytes)
        : weights(bytes), sum(bytes), gradient(bytes), seen(bytes) {}
    SliceMemory weights, sum, gradient, seen;
    std::vector<SliceMemory> states;  // by memory of the optimizer
  };
  struct Arrived {
    double factor = 1;
    Bytes bytes;
  };
  bool may_follow(const plan::Clerk::LogEntry& entry) const;
  void update(const plan::Clerk::LogEntry& entry);
  void apply(const plan::Clerk::LogEntry& entry, const Arrived& arrived);

  const AsynchronousRound::Setting& its_;
  const Cut& cut_;
  int rank_;
  Memories own_;
  Bytes buffers_;
  RoundMemory memory_;
  std::deque<plan::Clerk::LogEntry> log_;
  std::map<std::int64_t, Arrived> gradients_;  // by task: that have come and were not used yet
  std::set<std::int64_t> dropped_;  // tasks whose gradients do not count, and have not come
};

}  // namespace lockstep::steps
