// How kernels of a device walk over the flat layout: tables that are made once and are kept in the
// device's memory.
//
//   chunk   what one block of threads works on: at most kChunkElements of one parameter, inside one
//           piece (plan/slices.h). It begins where a block of the layout begins
//   place   the offsets of an entry: in the layout of parameters, and in the wide layout, which has
//           the same entries with float32 in place of half types (masters, states and sums)
//
// Chunks are in layout order, so the chunks of a bucket or a slice are one range. Or they are
// sorted by type, so that all chunks of one type are one range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::flat {

// The same entries in the types in which they are added: float32 for half types.
plan::Layout wide_layout(const plan::Layout& layout);

inline constexpr std::uint32_t kChunkElements = 4 * plan::kBlockElements;

struct alignas(16) Chunk {
  std::uint32_t entry = 0;
  std::uint32_t piece = 0;
  std::uint32_t block = 0;  // its first block, counted from the start of the parameter
  std::uint16_t count = 0;  // elements
  std::uint16_t rule = 0;   // of the parameter
};

struct alignas(16) EntryOffsets {
  std::uint64_t offset = 0;       // bytes
  std::uint64_t wide_offset = 0;  // bytes
  std::uint64_t first_block = 0;  // number of its first block in the layout
};

// Chunks begin … end−1.
struct ChunkRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  std::uint32_t size() const { return end - begin; }
  bool operator==(const ChunkRange&) const = default;
};

// The tables of one layout, on the host.
//
// Threads:   immutable after construction; any thread may read.
// Blocking:  never.
// Failure:   BadInput for a layout with more blocks than 32 bits can count. A range outside the
//            layout is a bug of the caller and stops the process.
// Ownership: a value.
class ChunkTables {
 public:
  enum class Order : std::uint8_t { kLayout, kType };

  // `rules`: by entry of the layout; all 0 if there are none. `pieces`: of this layout.
  ChunkTables(const plan::Layout& layout, const plan::Pieces& pieces,
              const std::vector<std::uint16_t>& rules = {}, Order order = Order::kLayout);

  const std::vector<Chunk>& chunks() const { return chunks_; }
  const std::vector<EntryOffsets>& places() const { return places_; }
  std::size_t wide_bytes() const { return wide_bytes_; }  // of the wide layout

  // The chunks of consecutive entries, such as those of a bucket. Only in layout order.
  ChunkRange of_entries(std::size_t first_entry, std::size_t entries) const;
  // The chunks of consecutive pieces, such as those of a worker. Only in layout order.
  ChunkRange of_pieces(std::size_t first_piece, std::size_t pieces) const;
  ChunkRange all() const { return {0, static_cast<std::uint32_t>(chunks_.size())}; }
  // All chunks as few ranges, each of one type: a kernel works on one type.
  struct Typed {
    DType dtype = DType::kFloat32;
    ChunkRange chunks;
  };
  std::vector<Typed> by_type() const;

 private:
  Order order_;
  std::vector<Chunk> chunks_;
  std::vector<EntryOffsets> places_;
  std::vector<DType> types_;
  std::size_t wide_bytes_ = 0;
};

}  // namespace lockstep::flat
