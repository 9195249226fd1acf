#include "flat/chunks.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/buckets.h"

namespace lockstep::flat {
namespace {

plan::Layout odd_layout() {
  return plan::Layout({{"half", DType::kBFloat16, 9'001},
                       {"none", DType::kBFloat16, 0},
                       {"one", DType::kFloat32, 1},
                       {"block", DType::kFloat32, 1'024},
                       {"long", DType::kFloat32, 40'000},
                       {"double", DType::kFloat64, 4'097}});
}

// Every element of the layout is in exactly one chunk, in layout order, and no chunk spans two pieces.
void expect_everything_once(const plan::Layout& layout, int workers) {
  const plan::Pieces pieces = plan::plan_pieces(layout, workers);
  const ChunkTables tables(layout, pieces);
  std::size_t entry = 0;
  std::size_t done = 0;
  for (const Chunk& chunk : tables.chunks()) {
    while (done == layout.entries()[entry].count) {
      ++entry;
      done = 0;
    }
    ASSERT_EQ(chunk.entry, entry);
    ASSERT_EQ(chunk.block * plan::kBlockElements, done);
    ASSERT_GT(chunk.count, 0);
    ASSERT_LE(chunk.count, kChunkElements);
    const plan::Stretch& piece = pieces.all[chunk.piece];
    ASSERT_EQ(piece.entry, entry);
    ASSERT_LE(piece.first, done);
    ASSERT_LE(done + chunk.count, piece.first + piece.count);
    done += chunk.count;
  }
  const auto elements =
      std::accumulate(tables.chunks().begin(), tables.chunks().end(), std::size_t{0},
                      [](std::size_t sum, const Chunk& chunk) { return sum + chunk.count; });
  EXPECT_EQ(elements, layout.elements());
}

TEST(ChunkTables, HoldEveryElementOnceInItsPiece) {
  for (const int workers : {1, 2, 3, 7}) expect_everything_once(odd_layout(), workers);
}

TEST(ChunkTables, KnowWhereEntriesLieInBothLayouts) {
  const plan::Layout layout = odd_layout();
  const ChunkTables tables(layout, plan::plan_pieces(layout, 1));
  std::size_t wide = 0;
  for (std::size_t i = 0; i < layout.entries().size(); ++i) {
    const plan::Entry& entry = layout.entries()[i];
    EXPECT_EQ(tables.places()[i].offset, entry.offset);
    EXPECT_EQ(tables.places()[i].wide_offset, wide);
    EXPECT_EQ(tables.places()[i].first_block, entry.first_block);
    const std::size_t bytes = entry.count * (entry.dtype == DType::kFloat64 ? 8 : 4);
    wide += (bytes + 63) / 64 * 64;
  }
  EXPECT_EQ(tables.wide_bytes(), wide);
}

TEST(ChunkTables, GiveTheChunksOfBucketsPiecesAndTypes) {
  const plan::Layout layout = odd_layout();
  const plan::Pieces pieces = plan::plan_pieces(layout, 2);
  const ChunkTables tables(layout, pieces);
  std::uint32_t next = 0;
  for (const plan::Bucket& bucket : plan::plan_buckets(layout, {0, 0})) {
    const ChunkRange range = tables.of_entries(bucket.first_entry, bucket.entries);
    EXPECT_EQ(range.begin, next);
    for (std::uint32_t i = range.begin; i < range.end; ++i) {
      EXPECT_GE(tables.chunks()[i].entry, bucket.first_entry);
      EXPECT_LT(tables.chunks()[i].entry, bucket.first_entry + bucket.entries);
    }
    next = range.end;
  }
  EXPECT_EQ(next, tables.all().end);
  const ChunkRange first = tables.of_pieces(0, pieces.first_of_worker[1]);
  const ChunkRange second =
      tables.of_pieces(pieces.first_of_worker[1], pieces.all.size() - pieces.first_of_worker[1]);
  EXPECT_EQ(first.end, second.begin);
  EXPECT_EQ(second.end, tables.all().end);
  EXPECT_EQ(tables.chunks()[second.begin].piece, pieces.first_of_worker[1]);
  const auto types = tables.by_type();
  ASSERT_EQ(types.size(), 3U);
  EXPECT_EQ(types[0].dtype, DType::kFloat64);
  EXPECT_EQ(types[1].dtype, DType::kFloat32);
  EXPECT_EQ(types[2].dtype, DType::kBFloat16);
  EXPECT_EQ(types[2].chunks.end, tables.all().end);
}

TEST(ChunkTables, HaveOneRangeForEachTypeIfTheyAreInThatOrder) {
  std::vector<plan::Parameter> parameters;
  for (int i = 0; i < 6; ++i) {
    const DType dtype = i % 2 == 0 ? DType::kBFloat16 : DType::kFloat32;
    parameters.push_back({"p" + std::to_string(i), dtype, 5000});
  }
  const plan::Layout layout(parameters);
  const plan::Pieces pieces = plan::plan_pieces(layout, 1);
  EXPECT_EQ(ChunkTables(layout, pieces).by_type().size(), 6U);
  const ChunkTables tables(layout, pieces, {}, ChunkTables::Order::kType);
  const auto types = tables.by_type();
  ASSERT_EQ(types.size(), 2U);
  EXPECT_EQ(types[0].chunks.size(), types[1].chunks.size());
  for (const auto& typed : types) {
    for (std::uint32_t i = typed.chunks.begin; i < typed.chunks.end; ++i)
      EXPECT_EQ(layout.entries()[tables.chunks()[i].entry].dtype, typed.dtype);
  }
}

TEST(ChunkTables, CarryTheRuleOfEachEntry) {
  const plan::Layout layout = odd_layout();
  const ChunkTables tables(layout, plan::plan_pieces(layout, 1), {5, 4, 3, 2, 1, 0});
  for (const Chunk& chunk : tables.chunks()) EXPECT_EQ(chunk.rule, 5 - chunk.entry);
}

}  // namespace
}  // namespace lockstep::flat
