#include "flat/chunks.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "flat/half.h"

namespace lockstep::flat {
namespace {

// The chunks whose `key` is first … first + count − 1.
template <typename Key>
ChunkRange range_of(const std::vector<Chunk>& chunks, std::size_t first, std::size_t count,
                    const Key& key) {
  const auto below = [&](std::size_t end) {
    const auto at = std::partition_point(chunks.begin(), chunks.end(),
                                         [&](const Chunk& chunk) { return key(chunk) < end; });
    return static_cast<std::uint32_t>(at - chunks.begin());
  };
  return {below(first), below(first + count)};
}

}  // namespace

plan::Layout wide_layout(const plan::Layout& layout) {
  std::vector<plan::Parameter> parameters(layout.entries().size());
  for (const plan::Entry& entry : layout.entries()) {
    parameters[entry.registered] = {entry.name, sum_type(entry.dtype), entry.count};
  }
  return plan::Layout(parameters);
}

ChunkTables::ChunkTables(const plan::Layout& layout, const plan::Pieces& pieces,
                         const std::vector<std::uint16_t>& rules, Order order)
    : order_(order) {
  const auto& entries = layout.entries();
  LOCKSTEP_CHECK(rules.empty() || rules.size() == entries.size(), "every entry has a rule");
  if (layout.blocks() > std::numeric_limits<std::uint32_t>::max()) {
    throw BadInput(fmt::format("{} elements are more than a device updates: split the model",
                               layout.elements()));
  }
  const plan::Layout wide = wide_layout(layout);
  wide_bytes_ = wide.bytes();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    places_.push_back({entries[i].offset, wide.entries()[i].offset, entries[i].first_block});
    types_.push_back(entries[i].dtype);
  }
  for (std::size_t number = 0; number < pieces.all.size(); ++number) {
    const plan::Stretch& piece = pieces.all[number];
    const std::uint16_t rule = rules.empty() ? std::uint16_t{0} : rules[piece.entry];
    for (std::size_t done = 0; done < piece.count; done += kChunkElements) {
      const std::size_t count = std::min<std::size_t>(kChunkElements, piece.count - done);
      chunks_.push_back({static_cast<std::uint32_t>(piece.entry),
                         static_cast<std::uint32_t>(number),
                         static_cast<std::uint32_t>((piece.first + done) / plan::kBlockElements),
                         static_cast<std::uint16_t>(count), rule});
    }
  }
  if (order == Order::kLayout) return;
  std::stable_sort(chunks_.begin(), chunks_.end(), [&](const Chunk& a, const Chunk& b) {
    return types_[a.entry] < types_[b.entry];
  });
}

ChunkRange ChunkTables::of_entries(std::size_t first_entry, std::size_t entries) const {
  LOCKSTEP_CHECK(order_ == Order::kLayout, "entries are a range in layout order");
  LOCKSTEP_CHECK(first_entry + entries <= places_.size(), "a range of entries lies in the layout");
  return range_of(chunks_, first_entry, entries, [](const Chunk& chunk) { return chunk.entry; });
}

ChunkRange ChunkTables::of_pieces(std::size_t first_piece, std::size_t pieces) const {
  LOCKSTEP_CHECK(order_ == Order::kLayout, "pieces are a range in layout order");
  return range_of(chunks_, first_piece, pieces, [](const Chunk& chunk) { return chunk.piece; });
}

std::vector<ChunkTables::Typed> ChunkTables::by_type() const {
  std::vector<Typed> ranges;
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    const DType dtype = types_[chunks_[i].entry];
    if (ranges.empty() || ranges.back().dtype != dtype) ranges.push_back({dtype, {i, i}});
    ranges.back().chunks.end = i + 1;
  }
  return ranges;
}

}  // namespace lockstep::flat
