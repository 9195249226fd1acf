// The flat layout as kernels of a device go over it: tables that are made once and lie in the device's memory.
//
//   chunk   what one block of threads does: at most kChunkElements of one parameter, in one piece (plan/slices.h), from the
//           beginning of a block of the layout on
//   place   where a parameter lies: in the layout of parameters, and in the wide one, which has the same entries with
//           float32 where parameters are half types: that of float32 masters, states and sums
//
// Chunks are in layout order, so those of a bucket or of a slice are a range; or those of one type come together, so that
// all of them are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::flat {

// The same entries in the types in which they are added up: float32 for half types.
plan::Layout wide_layout(const plan::Layout& layout);

inline constexpr std::uint32_t kChunkElements = 4 * plan::kBlockElements;

struct alignas(16) Chunk {
  std::uint32_t entry = 0;
  std::uint32_t piece = 0;
  std::uint32_t block = 0;  // the first one, counted from the parameter's
  std::uint16_t count = 0;  // elements
  std::uint16_t rule = 0;   // of the parameter
};

struct alignas(16) EntryOffsets {
  std::uint64_t offset = 0;       // bytes
  std::uint64_t wide_offset = 0;  // bytes
  std::uint64_t first_block = 0;  // of the layout's
};

// Chunks begin … end−1.
struct ChunkRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  std::uint32_t size() const { return end - begin; }
  bool operator==(const ChunkRange&) const = default;
};

// Threads:   immutable after construction; any thread may read.
// Blocking:  never.
// Failure:   BadInput for a layout of more blocks than 32 bits count. A range outside of the layout is a bug of the
//            caller and stops the process.
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

  // Of consecutive entries, such as a bucket's; in layout order.
  ChunkRange of_entries(std::size_t first_entry, std::size_t entries) const;
  // Of consecutive pieces, such as a worker's; in layout order.
  ChunkRange of_pieces(std::size_t first_piece, std::size_t pieces) const;
  ChunkRange all() const { return {0, static_cast<std::uint32_t>(chunks_.size())}; }
  // The fewest ranges of one type each.
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
