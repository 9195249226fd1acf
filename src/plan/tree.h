// The one order in which Lockstep adds the gradients of S shards, and which worker computes which
// part of it.
//
//   the tree   over shards 0 … S−1: a range splits at the largest power of two below its size, and
//              the lower range is the left operand. It works like a binary counter: two sums of
//              equal size are added like a carry, and at the end the sums that are left are added,
//              the smallest first
//   node       a range of shards that the tree adds up; no other range may be added
//   partial    a node whose shards are all on one worker
//
// A worker may add only what is inside one node. So the sum is the same expression of S operands
// for every number of workers. Everything here is a pure function of (shards, workers). It throws
// BadInput if there are no workers, or more workers than shards. A rank or a range out of bounds is
// a bug of the caller and stops the process.
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

// The shards that a worker hosts: a contiguous range. Ranges are as equal as possible; the first
// workers host one more.
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

// What the owner of a slice does with the partials of all workers. Operands are numbered in shard
// order. Addition i makes number operands.size() + i. The last number is the sum over all shards.
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

// The same for one shard on each worker. It is made once and kept, because making it takes longer
// than a short operation.
const Reduction& plan_of_one_each(int workers);

// The sum of a node from operands that make it up. They are in shard order, and each is a node
// below it.
Reduction plan_additions(ShardRange node, std::vector<Operand> operands);

// Whether partners at distance 1, 2, 4 … follow the tree. If not, the reason in one phrase.
struct Verdict {
  bool possible = false;
  std::string reason;
};
Verdict halving_doubling_verdict(int shards, int workers);

// One step of the halving phase for one worker: it swaps one half of its current part with the
// partner. The doubling phase is the same steps backwards, without additions. After halving, rank r
// has the part whose number is r with its bits reversed.
struct HalvingStep {
  int partner = 0;
  bool partner_is_left = false;  // the partner's operand is the left one
  bool keep_low = false;         // whether this worker keeps the lower half of its current part
  bool operator==(const HalvingStep&) const = default;
};
std::vector<HalvingStep> halving_steps(int rank, int workers);

}  // namespace lockstep::plan
