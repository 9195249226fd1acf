#include "plan/layout.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

namespace lockstep::plan {
namespace {

std::vector<Parameter> mixed_parameters() {
  return {{"embed", DType::kBFloat16, 5000}, {"norm", DType::kFloat32, 3},
          {"empty", DType::kFloat32, 0},     {"head", DType::kFloat64, 1024},
          {"bias", DType::kUInt8, 65},       {"last", DType::kFloat16, 0}};
}

TEST(LayoutTest, FollowsReverseRegistrationOrderAlignedTo64Bytes) {
  const Layout layout(mixed_parameters());
  std::vector<std::string> names;
  std::size_t end = 0;
  for (const Entry& entry : layout.entries()) {
    names.push_back(entry.name);
    EXPECT_EQ(entry.offset % kEntryAlignment, 0u);
    EXPECT_GE(entry.offset, end);
    EXPECT_LT(entry.offset - end, kEntryAlignment);
    end = entry.offset + entry.bytes();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"last", "bias", "head", "empty", "norm", "embed"}));
  EXPECT_EQ(layout.bytes() % kEntryAlignment, 0u);
  EXPECT_EQ(layout.bytes(), 0u + 128 + 8192 + 0 + 64 + 10048);
}

TEST(LayoutTest, FindsEntriesByNameAndByRegistration) {
  const auto parameters = mixed_parameters();
  const Layout layout(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t entry = layout.entry_of_registered(i);
    EXPECT_EQ(layout.entry_of(parameters[i].name), entry);
    EXPECT_EQ(layout.entries()[entry].registered, i);
    EXPECT_EQ(layout.entries()[entry].count, parameters[i].count);
  }
  EXPECT_THROW(layout.entry_of("nobody"), BadInput);
}

TEST(LayoutTest, BlocksCoverEveryElementOnceInOrderAndNeverSpanTwoParameters) {
  const Layout layout(mixed_parameters());
  std::vector<std::size_t> covered(layout.entries().size(), 0);
  std::size_t last_entry = 0;
  for (std::size_t number = 0; number < layout.blocks(); ++number) {
    const Stretch block = layout.block(number);
    const Entry& entry = layout.entries()[block.entry];
    EXPECT_GE(block.entry, last_entry);
    EXPECT_EQ(block.first, covered[block.entry]);
    EXPECT_EQ(block.first % kBlockElements, 0u);
    EXPECT_GT(block.count, 0u);
    const bool last_of_entry = block.first + block.count == entry.count;
    EXPECT_TRUE(block.count == kBlockElements || last_of_entry);
    covered[block.entry] += block.count;
    last_entry = block.entry;
  }
  for (std::size_t i = 0; i < covered.size(); ++i) EXPECT_EQ(covered[i], layout.entries()[i].count);
  EXPECT_EQ(layout.blocks(), 1u + 1 + 1 + 5);
  EXPECT_EQ(layout.elements(), 65u + 1024 + 3 + 5000);
}

TEST(LayoutTest, WithoutParametersIsEmpty) {
  const Layout layout({});
  EXPECT_EQ(layout.bytes(), 0u);
  EXPECT_EQ(layout.blocks(), 0u);
}

TEST(LayoutTest, DuplicateNamesAreRefusedByName) {
  try {
    Layout({{"w", DType::kFloat32, 1}, {"v", DType::kFloat32, 1}, {"w", DType::kFloat32, 2}});
    FAIL() << "accepted two parameters called w";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("called w"), std::string::npos);
  }
}

TEST(LayoutTest, SizesThatWouldOverflowAreRefused) {
  EXPECT_THROW(Layout({{"w", DType::kFloat64, ~std::size_t{0}}}), BadInput);
  const std::size_t much = std::size_t{1} << 55;
  EXPECT_THROW(
      Layout({{"a", DType::kUInt8, much}, {"b", DType::kUInt8, much}, {"c", DType::kUInt8, 1}}),
      BadInput);
  EXPECT_THROW(Layout({{"w", static_cast<DType>(99), 1}}), BadInput);
}

}  // namespace
}  // namespace lockstep::plan
