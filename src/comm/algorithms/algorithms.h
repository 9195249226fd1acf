// The collectives, each over an Exchange: messages between two workers, and arithmetic. They know
// no engine.
//
// All members of a group call a function with the same arguments, except for the data. This worker's
// buffers are not used any more when Exchange::finish() has returned after it.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/comm.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/core/exchange.h"
#include "flat/fold.h"
#include "plan/hosts.h"
#include "plan/tree.h"

namespace lockstep::comm {

// The algorithm that will run, and why: choose() says so for the one that was asked for.
struct Choice {
  Algorithm algorithm = Algorithm::kDirect;
  std::string how;
};

// What a group of workers allows.
struct Possible {
  int workers = 1;
  bool two_levels = false;  // there are several hosts, and one of them has several of the workers
};
Choice choose(Algorithm asked, int shards, Possible possible);

// The result of a reduction: `op` over all operands, times `factor`.
struct ReduceRule {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;

  flat::Fold fold(DType dtype) const { return {dtype, op, factor}; }
};

// How a buffer is cut into one slice per worker.
class Cut {
 public:
  // Slices as equal as possible, in units of `granule` elements; the first ones are the longer
  // ones.
  static Cut even(std::size_t count, int workers, std::size_t granule = 1);
  static Cut of(std::span<const std::size_t> counts);
  // Worker w has elements bounds[w] … bounds[w+1]−1.
  static Cut at(std::vector<std::size_t> bounds);

  std::size_t first(int worker) const { return bounds_[worker]; }
  std::size_t longest() const;
  std::size_t total() const { return bounds_.back(); }
  std::vector<std::size_t> counts() const;
  std::size_t count(int worker) const { return bounds_[worker + 1] - bounds_[worker]; }
  Buffer of(const Buffer& whole, int worker) const {
    return whole.slice(first(worker), count(worker));
  }

 private:
  std::vector<std::size_t> bounds_;
};

// The slices of an all-to-all: one from each worker to each worker.
class PairSlices {
 public:
  // The slice from worker f to worker t has counts[f * workers + t] elements.
  PairSlices(std::vector<std::size_t> counts, int workers);

  Cut data_of(int worker) const;    // by receiver
  Cut result_of(int worker) const;  // by sender
  std::size_t total() const;        // elements of all slices
  const std::vector<std::size_t>& counts() const { return counts_; }

 private:
  std::vector<std::size_t> counts_;
  std::size_t workers_;
};

// direct.cpp: bit-stable for every number of shards and workers.
void direct_reduce(Exchange& exchange, const plan::Reduction& plan,
                   std::span<const Buffer> partials, Buffer result, ReduceRule rule);
void direct_reduce_scatter(Exchange& exchange, Buffer data, const Cut& cut, ReduceRule rule);
void direct_all_gather(Exchange& exchange, Buffer data, const Cut& cut);
void direct_all_to_all(Exchange& exchange, Buffer data, Buffer result, const PairSlices& slices);

// two_levels.cpp: bit-stable. Only if the group has neighbours (Exchange::on_host), and not for half
// types. All buffers are in memory that the host shares.
void two_level_reduce(Exchange& exchange, const plan::TwoLevels& levels,
                      std::span<const Buffer> partials, Buffer result, ReduceRule rule);

// halving_doubling.cpp: bit-stable. Only if plan::halving_doubling_verdict allows it.
void halving_doubling_all_reduce(Exchange& exchange, Buffer data, ReduceRule rule);

// ring_all_reduce.cpp: not bit-stable.
void ring_all_reduce(Exchange& exchange, Buffer data, ReduceRule rule);

// tree_all_reduce.cpp: bit-stable for one partial per worker.
void tree_all_reduce(Exchange& exchange, Buffer data, ReduceRule rule);
void tree_broadcast(Exchange& exchange, Buffer data, int root);

// In ⌈log2 N⌉ rounds of greetings, or in one round on a board.
void dissemination_barrier(Exchange& exchange);

// in_memory.cpp: the collectives in memory that all members can reach. Each begins the operation
// with a round on the board. It returns false if some buffer is in memory that is not shared;
// messages then do the work.
bool reduce_in_memory(Exchange& exchange, const plan::Reduction& plan,
                      std::span<const Buffer> partials, Buffer result, ReduceRule rule);
bool reduce_scatter_in_memory(Exchange& exchange, Buffer data, const Cut& cut, ReduceRule rule);
bool all_gather_in_memory(Exchange& exchange, Buffer data, const Cut& cut);
bool all_to_all_in_memory(Exchange& exchange, Buffer data, Buffer result, const PairSlices& slices);
bool broadcast_in_memory(Exchange& exchange, Buffer data, int root);

}  // namespace lockstep::comm
