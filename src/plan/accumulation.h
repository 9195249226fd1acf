// How one worker adds up the gradients of the shards that it hosts.
//
//   bank       a memory for all gradients of the model
//   straight   a shard whose left sibling in the tree lies in a bank is accumulated into that bank: the backward pass
//              itself performs the tree's addition
//
// Shards run in order. Each goes straight into a bank, or begins one. When no bank is free two siblings are added, the
// right one into the left one's bank. What is left at the end are nodes of the tree, more than the fewest that the
// worker could hold: whoever sums them over workers adds them on the way, which is cheaper than a pass of its own.
#pragma once

#include <vector>

#include "plan/tree.h"

namespace lockstep::plan {

// What the tree over `shards` needs at most: one bank for each level, and two.
int most_banks(int shards);

struct Accumulation {
  struct Addition {
    int into = 0;  // bank
    int from = 0;  // bank, which is free after
    bool operator==(const Addition&) const = default;
  };
  struct Step {
    int shard = 0;
    std::vector<Addition> before;  // to be done first
    int bank = 0;
    bool begins = false;  // the bank is cleared first
  };
  struct Held {
    ShardRange range;
    int bank = 0;
  };
  std::vector<Step> steps;  // by hosted shard
  std::vector<Held> held;   // in shard order
  int banks = 0;            // that are used
};

// BadInput as plan_reduction; `banks` is at least most_banks(shards).
Accumulation plan_accumulation(ShardRange hosted, int shards, int banks);

// Every worker's accumulation, by rank, and the sum of all they hold. The operands of worker w are what it holds, in
// order.
struct ShardedReduction {
  std::vector<Accumulation> workers;
  Reduction sum;
  int banks = 0;  // of the worker that uses most
};
ShardedReduction plan_sharded_reduction(int shards, int workers);

// The additions that make the fewest nodes of what one worker holds: one reduction for each of held_partials(), over
// consecutive members of `held`.
std::vector<Reduction> plan_partials(const Accumulation& accumulation, ShardRange hosted,
                                     int shards);

}  // namespace lockstep::plan
