#include "flat/dispatch.h"

#include <gtest/gtest.h>

#include "tests/support/levels.h"

namespace lockstep::flat {
namespace {

TEST(Dispatch, TakesTheFastestLevelUnlessTold) {
  const auto levels = available_levels();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(levels.front(), Level::kBaseline);
  EXPECT_EQ(level(), levels.back());
  std::vector<Level> seen;
  testing::at_every_level([&] { seen.push_back(level()); });
  EXPECT_EQ(seen, levels);
  EXPECT_EQ(level(), levels.back());
}

}  // namespace
}  // namespace lockstep::flat
