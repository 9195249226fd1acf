#include "plan/slices.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <random>

namespace lockstep::plan {
namespace {

Layout random_layout(std::mt19937& random) {
  std::vector<Parameter> parameters;
  const int count = static_cast<int>(random() % 30);
  for (int i = 0; i < count; ++i) {
    const std::size_t most = random() % 4 == 0 ? 20'000 : 1500;
    parameters.push_back({fmt::format("p{}", i), DType::kFloat32, random() % most});
  }
  return Layout(parameters);
}

std::size_t elements_of(const Layout& layout, BlockRange blocks) {
  std::size_t elements = 0;
  for (const Stretch& stretch : stretches_of(layout, blocks)) elements += stretch.count;
  return elements;
}

TEST(Slices, PartitionTheBlocksInOrder) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const Layout layout = random_layout(random);
    const int workers = 1 + static_cast<int>(random() % 70);
    const auto slices = plan_slices(layout, workers);
    ASSERT_EQ(static_cast<int>(slices.size()), workers);
    std::size_t next = 0;
    for (const BlockRange& slice : slices) {
      ASSERT_EQ(slice.begin, next);
      ASSERT_LE(slice.begin, slice.end);
      next = slice.end;
    }
    ASSERT_EQ(next, layout.blocks());
  }
}

TEST(Slices, AreEvenToWithinOneBlock) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const Layout layout = random_layout(random);
    const std::size_t workers = 1 + random() % 70;
    const std::size_t least = layout.elements() / workers;
    const std::size_t most = (layout.elements() + workers - 1) / workers;
    for (const BlockRange& slice : plan_slices(layout, static_cast<int>(workers))) {
      const std::size_t elements = elements_of(layout, slice);
      ASSERT_GE(elements + kBlockElements, least);
      ASSERT_LE(elements, most + kBlockElements);
    }
  }
}

TEST(Slices, AreExactWhereBlocksAllowIt) {
  const Layout layout({{"a", DType::kFloat32, 8 * kBlockElements}});
  EXPECT_EQ(plan_slices(layout, 4), (std::vector<BlockRange>{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_EQ(plan_slices(layout, 3), (std::vector<BlockRange>{{0, 3}, {3, 5}, {5, 8}}));
}

TEST(Slices, MayBeEmpty) {
  const Layout layout({{"a", DType::kFloat32, 10}});
  std::size_t owners = 0;
  for (const BlockRange& slice : plan_slices(layout, 5)) owners += slice.size();
  EXPECT_EQ(owners, 1u);
  EXPECT_EQ(plan_slices(Layout({}), 2), (std::vector<BlockRange>{{0, 0}, {0, 0}}));
}

TEST(Slices, NeedAWorker) {
  EXPECT_THROW(plan_slices(Layout({}), 0), BadInput);
}

TEST(Stretches, AreTheElementsOfTheirBlocks) {
  std::mt19937 random(4);
  for (int round = 0; round < 100; ++round) {
    const Layout layout = random_layout(random);
    const std::size_t begin = random() % (layout.blocks() + 1);
    const std::size_t end = begin + random() % (layout.blocks() - begin + 1);
    std::vector<Stretch> joined;
    for (std::size_t number = begin; number < end; ++number) {
      const Stretch block = layout.block(number);
      if (!joined.empty() && joined.back().entry == block.entry) {
        joined.back().count += block.count;
      } else {
        joined.push_back(block);
      }
    }
    ASSERT_EQ(stretches_of(layout, {begin, end}), joined);
  }
}

TEST(Pieces, CoverEveryElementOnceInOrderAndCrossNoBoundary) {
  const Layout layout({{"a", DType::kFloat32, 3 * kPieceElements + 5},
                       {"empty", DType::kFloat32, 0},
                       {"b", DType::kFloat64, 700},
                       {"c", DType::kBFloat16, kPieceElements}});
  for (int workers = 1; workers <= 5; ++workers) {
    const Pieces pieces = plan_pieces(layout, workers);
    const auto slices = plan_slices(layout, workers);
    ASSERT_EQ(pieces.first_of_worker.size(), static_cast<std::size_t>(workers) + 1);
    ASSERT_EQ(pieces.first_of_entry.size(), layout.entries().size() + 1);
    std::size_t piece = 0;
    for (std::size_t entry = 0; entry < layout.entries().size(); ++entry) {
      EXPECT_EQ(pieces.first_of_entry[entry], piece);
      std::size_t next = 0;
      while (piece < pieces.all.size() && pieces.all[piece].entry == entry) {
        EXPECT_EQ(pieces.all[piece].first, next);
        EXPECT_LE(pieces.all[piece].count, kPieceElements);
        next += pieces.all[piece++].count;
      }
      EXPECT_EQ(next, layout.entries()[entry].count);
    }
    EXPECT_EQ(pieces.first_of_entry.back(), piece);
    EXPECT_EQ(pieces.first_of_worker.back(), piece);
    for (std::size_t worker = 0; worker < slices.size(); ++worker) {
      std::size_t elements = 0;
      for (const Stretch& stretch : stretches_of(layout, slices[worker])) elements += stretch.count;
      for (std::size_t i = pieces.first_of_worker[worker]; i < pieces.first_of_worker[worker + 1];
           ++i)
        elements -= pieces.all[i].count;
      EXPECT_EQ(elements, 0U) << worker;
    }
  }
}

}  // namespace
}  // namespace lockstep::plan
