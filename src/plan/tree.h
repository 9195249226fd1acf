// The one order in which Lockstep adds what S shards contribute, and who computes which part of it.
//
//   the tree   over shards 0 … S−1: a range splits at the largest power of two below its size, and
//              the lower range is the left operand. Like a binary counter: carries, and leftovers
//              fold smallest first
//   node       a range of shards that the tree adds up; every other range is none
//   partial    a node whose shards all lie on one worker
//
// A worker may add what lies inside one node, and nothing else; so the sum is one expression of S
// operands for every number of workers. Everything here is a pure function of (shards, workers).
// BadInput for a world that cannot be: no workers, or more workers than shards. A rank or a range
// outside of it is a bug of the caller and stops the process.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lockstep::plan {

// Shards begin … end−1.
struct ShardRange {
  int begin = 0;
  int end = 0;

  int size() const { return end - begin; }
  bool operator==(const ShardRange&) const = default;
};

// Where a range of `size` ≥ 2 shards splits: the size of its left operand.
int split_size(int size);

// The shards that a worker hosts: contiguous, as even as possible, the first ones one more.
ShardRange hosted_shards(int worker, int workers, int shards);

// The sum of values in the order of the tree over them; 0 for none.
double tree_sum(std::span<const double> values);

// A contiguous range as the fewest nodes of the tree over `shards`, in shard order.
std::vector<ShardRange> held_partials(ShardRange hosted, int shards);

// One addition: operand `left` + operand `right`, in this order.
struct Addition {
  int left = 0;
  int right = 0;
  bool operator==(const Addition&) const = default;
};

// A node that one worker holds when the reduction between workers begins.
struct Operand {
  int worker = 0;
  ShardRange range;
  bool operator==(const Operand&) const = default;
};

// What the owner of a slice does with everyone's partials of it. Operands are numbered in shard
// order, addition i yields number operands.size() + i, and the last number is the sum over all
// shards.
struct Reduction {
  int shards = 0;
  int workers = 0;
  std::vector<Operand> operands;
  std::vector<Addition> additions;

  // The numbers of the operands that a worker holds: first, and how many.
  int first_of(int worker) const;
  int count_of(int worker) const;
};
Reduction plan_reduction(int shards, int workers);

// The same for one shard on each worker, made once: short operations are shorter than it.
const Reduction& plan_of_one_each(int workers);

// The sum of a node from operands that make it up, in shard order, each a node below it.
Reduction plan_additions(ShardRange node, std::vector<Operand> operands);

// Whether partners at distance 1, 2, 4 … follow the tree, and if not, why not in one phrase.
struct Verdict {
  bool possible = false;
  std::string reason;
};
Verdict halving_doubling_verdict(int shards, int workers);

// One step of the halving phase for one worker: swap half of what is still summed with the partner.
// The doubling phase is the same steps backwards, without additions. Rank r ends with the part
// whose number is r's bits reversed.
struct HalvingStep {
  int partner = 0;
  bool partner_is_left = false;  // the partner's operand is the left one
  bool keep_low = false;         // which half of the current part this worker goes on summing
  bool operator==(const HalvingStep&) const = default;
};
std::vector<HalvingStep> halving_steps(int rank, int workers);

}  // namespace lockstep::plan
