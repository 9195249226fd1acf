// How many bytes a reduction moves between workers, before it moves any.
//
//   direct   every worker sends an owner that owner's slice of each partial it holds, and gets the sum back: a worker
//            that holds P partials sends (P + 1) · (N−1)/N of the buffer. Several, where its shards are no node of the
//            tree: that is the price of one order of addition
//   ring     2 (N−1)/N of the buffer for each worker, the least there is; in an order that depends on N
//
// comm/algorithms/direct.cpp cuts buffers with direct_cut() and sends what a Reduction says its workers hold, so what
// is counted here is what is sent there. Headers are not counted, and nothing that is read where it lies.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/tree.h"

namespace lockstep::plan {

// Bounds of one stretch of `count` elements for each worker, as even as possible in units of `granule` elements, the
// first ones longer: worker w has bounds[w] … bounds[w+1]−1.
std::vector<std::size_t> even_bounds(std::size_t count, int workers, std::size_t granule);

// Who owns what of a buffer in a direct reduction.
struct DirectCut {
  bool everyone_owns_all = false;   // a short buffer: no sums are handed out
  std::vector<std::size_t> bounds;  // of a longer one, in elements
};
DirectCut direct_cut(std::size_t count, std::size_t element_bytes, int workers);

// Of one worker.
struct Traffic {
  std::size_t sent = 0;
  std::size_t received = 0;
  bool operator==(const Traffic&) const = default;
};

// By rank: a direct reduction of one buffer over the workers of the plan.
std::vector<Traffic> direct_traffic(const Reduction& plan, std::size_t count,
                                    std::size_t element_bytes);

// What each worker sends, and receives, when a buffer goes round a ring. 0 for one worker.
double ring_bytes(std::size_t bytes, int workers);

}  // namespace lockstep::plan
