// Which worker owns which blocks: it sums them and updates them.
//
// Slices are contiguous ranges of block numbers in layout order, cut as evenly as whole blocks
// allow. The boundary between workers k−1 and k is the block boundary nearest to element
// ⌊k · elements / N⌋, the lower one of two as near. No boundary lies further than half a block from
// there, so a slice has between ⌊elements / N⌋ − 1,024 and ⌈elements / N⌉ + 1,024 elements; with
// fewer blocks than workers some slices are empty.
//
// Elements are counted, not bytes: the work of an update is per element.
//
//   piece    what is updated at a time, and watched as one: at most kPieceElements of one parameter in one slice
#pragma once

#include <cstddef>
#include <vector>

#include "plan/layout.h"

namespace lockstep::plan {

// Blocks begin … end−1.
struct BlockRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
  bool operator==(const BlockRange&) const = default;
};

// One slice per worker, in order of rank; together every block once. BadInput for fewer than one
// worker.
std::vector<BlockRange> plan_slices(const Layout& layout, int workers);

// A range of blocks as elements: one stretch for every entry that it touches, in layout order.
std::vector<Stretch> stretches_of(const Layout& layout, BlockRange blocks);

// Gradient, parameter and two states of a piece stay in a second-level cache, and what is computed once for each does
// not count.
inline constexpr std::size_t kPieceElements = 8192;

// Every slice in pieces, in layout order.
struct Pieces {
  std::vector<Stretch> all;
  std::vector<std::size_t> first_of_worker;  // and the end
  std::vector<std::size_t> first_of_entry;   // and the end
};
Pieces plan_pieces(const Layout& layout, int workers);

}  // namespace lockstep::plan
