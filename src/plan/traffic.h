// How many bytes a reduction will move between workers.
//
//   direct   every worker sends each owner that owner's slice of each partial, and gets the sum
//            back. A worker with P partials sends (P + 1) · (N−1)/N of the buffer. P is more than 1
//            if the shards of the worker are not one node of the tree: the price of one order of
//            addition
//   ring     2 (N−1)/N of the buffer for each worker, which is the minimum, but in an order of
//            addition that depends on N
//
// comm/algorithms/direct.cpp cuts buffers with direct_cut() and sends what the Reduction says that
// workers hold. So the bytes counted here are the bytes sent there. Headers are not counted, nor
// memory that is read directly where workers share it.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/tree.h"

namespace lockstep::plan {

// The bounds of one slice per worker of a buffer of `count` elements, as equal as possible in units
// of `granule` elements; the first ones are the longer ones. Worker w has elements bounds[w] …
// bounds[w+1]−1.
std::vector<std::size_t> even_bounds(std::size_t count, int workers, std::size_t granule);

// The elements of one line of a cache. Slices begin at lines, so that no two owners write to one.
std::size_t line_elements(std::size_t element_bytes);

// Which worker owns which elements of a buffer in a direct reduction.
struct DirectCut {
  bool everyone_owns_all = false;   // a short buffer: no sums are handed out
  std::vector<std::size_t> bounds;  // for a longer buffer, in elements
};
DirectCut direct_cut(std::size_t count, std::size_t element_bytes, int workers);

// What one worker sends and receives.
struct Traffic {
  std::size_t sent = 0;
  std::size_t received = 0;
  bool operator==(const Traffic&) const = default;
};

// The traffic of each worker, by rank, in a direct reduction of one buffer.
std::vector<Traffic> direct_traffic(const Reduction& plan, std::size_t count,
                                    std::size_t element_bytes);

// What each worker sends, and also receives, with the ring algorithm. 0 for one worker.
double ring_bytes(std::size_t bytes, int workers);

}  // namespace lockstep::plan
