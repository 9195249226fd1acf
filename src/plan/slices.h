// Which worker owns which blocks. The owner sums them and updates them.
//
// Slices are contiguous ranges of block numbers in layout order, as equal as whole blocks allow.
// The boundary between workers k−1 and k is the block boundary that is nearest to element ⌊k ·
// elements / N⌋; if two are equally near, the lower one. No boundary is further than half a block
// from that element. So a slice has between ⌊elements / N⌋ − 1,024 and ⌈elements / N⌉ + 1,024
// elements. If there are fewer blocks than workers, some slices are empty.
//
// Elements are counted, not bytes, because the work of an update is per element.
//
//   piece    what is updated and checked by parity as one: at most kPieceElements of one parameter
//            in one slice
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

// One slice per worker, by rank. Together they have every block once. Throws BadInput for fewer
// than one worker.
std::vector<BlockRange> plan_slices(const Layout& layout, int workers);

// A range of blocks as elements: one stretch for every entry that it touches, in layout order.
std::vector<Stretch> stretches_of(const Layout& layout, BlockRange blocks);

// So small that gradient, parameter and two states of a piece stay in a second-level cache, and so
// large that the work per piece is small beside the work per element.
inline constexpr std::size_t kPieceElements = 8192;

// All slices in pieces, in layout order.
struct Pieces {
  std::vector<Stretch> all;
  std::vector<std::size_t> first_of_worker;  // and the end
  std::vector<std::size_t> first_of_entry;   // and the end
};
Pieces plan_pieces(const Layout& layout, int workers);

}  // namespace lockstep::plan
