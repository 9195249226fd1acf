#include "plan/slices.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::plan {
namespace {

// ⌊part · total / parts⌋ without the product, which could overflow.
std::size_t share(std::size_t total, std::size_t part, std::size_t parts) {
  return total / parts * part + total % parts * part / parts;
}

// The number of the block that begins nearest to `element`. The number after the last block is the
// end.
std::size_t nearest_boundary(const Layout& layout, std::size_t element) {
  const std::vector<Entry>& entries = layout.entries();
  const auto after = std::partition_point(entries.begin(), entries.end(), [&](const Entry& entry) {
    return entry.first_element <= element;
  });
  if (after == entries.begin()) return 0;
  const Entry& entry = *(after - 1);
  const std::size_t inside = element - entry.first_element;
  const std::size_t below = inside / kBlockElements;
  const std::size_t begin = below * kBlockElements;
  const std::size_t end = std::min(begin + kBlockElements, entry.count);
  const bool upper_is_nearer = end > inside && end - inside < inside - begin;
  return entry.first_block + below + (upper_is_nearer ? 1 : 0);
}

}  // namespace

std::vector<BlockRange> plan_slices(const Layout& layout, int workers) {
  if (workers < 1) {
    throw BadInput(fmt::format("{} workers own nothing: ask for at least 1", workers));
  }
  const auto parts = static_cast<std::size_t>(workers);
  std::vector<BlockRange> slices(parts);
  std::size_t begin = 0;
  for (std::size_t k = 0; k < parts; ++k) {
    const std::size_t end = k + 1 == parts
                                ? layout.blocks()
                                : nearest_boundary(layout, share(layout.elements(), k + 1, parts));
    slices[k] = {begin, end};
    begin = end;
  }
  return slices;
}

std::vector<Stretch> stretches_of(const Layout& layout, BlockRange blocks) {
  LOCKSTEP_CHECK(blocks.begin <= blocks.end && blocks.end <= layout.blocks(),
                 "a range of blocks lies inside the layout");
  std::vector<Stretch> stretches;
  std::size_t next = blocks.begin;
  while (next < blocks.end) {
    const Stretch from = layout.block(next);
    const Entry& entry = layout.entries()[from.entry];
    const std::size_t until = std::min(blocks.end, entry.first_block + entry.blocks());
    const std::size_t last = std::min((until - entry.first_block) * kBlockElements, entry.count);
    stretches.push_back({.entry = from.entry, .first = from.first, .count = last - from.first});
    next = until;
  }
  return stretches;
}

Pieces plan_pieces(const Layout& layout, int workers) {
  Pieces pieces;
  pieces.first_of_entry.assign(layout.entries().size() + 1, 0);
  for (const BlockRange& slice : plan_slices(layout, workers)) {
    pieces.first_of_worker.push_back(pieces.all.size());
    for (const Stretch& stretch : stretches_of(layout, slice)) {
      for (std::size_t done = 0; done < stretch.count; done += kPieceElements) {
        pieces.all.push_back(
            {stretch.entry, stretch.first + done, std::min(kPieceElements, stretch.count - done)});
        ++pieces.first_of_entry[stretch.entry + 1];
      }
    }
  }
  pieces.first_of_worker.push_back(pieces.all.size());
  for (std::size_t i = 1; i < pieces.first_of_entry.size(); ++i)
    pieces.first_of_entry[i] += pieces.first_of_entry[i - 1];
  return pieces;
}

}  // namespace lockstep::plan
