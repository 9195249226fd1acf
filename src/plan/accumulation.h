// How one worker adds up the gradients of the shards that it hosts.
//
//   bank       a flat memory for all gradients of the model
//   straight   if the left sibling of a shard in the tree is in a bank, the shard is accumulated
//              into that bank: the backward pass itself does the tree's addition
//
// Shards run in order. Each goes straight into a bank, or begins a new bank. If no bank is free,
// two siblings are added first, the right one into the bank of the left one. At the end the banks
// hold nodes of the tree. These may be more nodes than necessary. The reduction over workers adds
// them on the way, which is cheaper than another pass over memory here.
#pragma once

#include <vector>

#include "plan/tree.h"

namespace lockstep::plan {

// The largest number of banks that the tree over `shards` needs: one for each level, and two.
int most_banks(int shards);

struct Accumulation {
  struct Addition {
    int into = 0;  // bank
    int from = 0;  // bank; it is free afterwards
    bool operator==(const Addition&) const = default;
  };
  struct Step {
    int shard = 0;
    std::vector<Addition> before;  // do these first
    int bank = 0;
    bool begins = false;  // the bank is cleared first
  };
  struct Held {
    ShardRange range;
    int bank = 0;
  };
  std::vector<Step> steps;  // by hosted shard
  std::vector<Held> held;   // in shard order
  int banks = 0;            // number of banks used
};

// Throws BadInput as plan_reduction does. `banks` must be at least most_banks(shards).
Accumulation plan_accumulation(ShardRange hosted, int shards, int banks);

// The accumulation of every worker, by rank, and the reduction of everything that they hold. The
// operands of worker w are what it holds, in order.
struct ShardedReduction {
  std::vector<Accumulation> workers;
  Reduction sum;
  int banks = 0;  // of the worker that uses the most
};
ShardedReduction plan_sharded_reduction(int shards, int workers);
// The same with a bank for each shard: nothing is added before the reduction.
ShardedReduction plan_separate_shards(int shards, int workers);

// The additions that turn what one worker holds into the fewest nodes: one reduction for each of
// held_partials(), over consecutive members of `held`.
std::vector<Reduction> plan_partials(const Accumulation& accumulation, ShardRange hosted,
                                     int shards);

}  // namespace lockstep::plan
