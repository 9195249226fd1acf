// Which steps of a job make a round (lockstep/local_steps.h), and in which order a worker reads the batches of its shards: round
// by round, in each shard by shard, of each shard step by step. Without local steps each step is a round. And which fragment of a
// model a round exchanges, if it is one of Streaming.
#pragma once

#include <lockstep/local_steps.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/tree.h"

namespace lockstep::plan {

struct StepRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - first; }
  bool operator==(const StepRange&) const = default;
};

struct ShardStep {
  std::int64_t step = 0;
  int shard = 0;
  bool operator==(const ShardStep&) const = default;
};

// A pure function of the options.
//
// Threads:   any.
// Blocking:  never.
// Failure:   the constructor throws BadInput for stages that make no sense.
// Ownership: a value.
class Rounds {
 public:
  explicit Rounds(const LocalSteps& local = {});

  // The step behind the round that `step` belongs to, if no loop ends before.
  std::int64_t end(std::int64_t step) const;

  // The fragment whose turn it is in the round that `step` belongs to; 0 if there are none.
  int fragment(std::int64_t step) const;

  // How often a fragment is exchanged in the first so many steps; without local steps, each of them counts.
  std::int64_t exchanges(std::int64_t steps) const;

  // Of a loop over these steps, which begins with a round: the batch with this number, from 0 on.
  ShardStep batch(std::int64_t number, StepRange loop, ShardRange hosted) const;

 private:
  // Steps whose rounds have one length: from this stage to the next.
  std::size_t stage_of(std::int64_t step) const;

  std::vector<LocalSteps::Stage> stages_;
  int fragments_ = 1;
};

// Consecutive items in so many groups of about the same number of bytes each: the end of each group. No group is empty if there are as many
// items with bytes.
std::vector<std::size_t> fragment_ends(std::span<const std::size_t> bytes, int fragments);

}  // namespace lockstep::plan
