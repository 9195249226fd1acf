#include "plan/buckets.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

namespace lockstep::plan {
namespace {

std::vector<std::size_t> payloads(const std::vector<Bucket>& buckets) {
  std::vector<std::size_t> sizes;
  for (const Bucket& bucket : buckets) sizes.push_back(bucket.payload_bytes);
  return sizes;
}

std::vector<Parameter> linear_layers(int layers, std::size_t width) {
  std::vector<Parameter> parameters;
  for (int i = 0; i < layers; ++i) {
    parameters.push_back({fmt::format("{}.weight", i), DType::kFloat32, width * width});
    parameters.push_back({fmt::format("{}.bias", i), DType::kFloat32, width});
  }
  return parameters;
}

// What PyTorch 1.13.1's DDP logs for 40 Linear(512, 512) after it has rebuilt its buckets.
TEST(Buckets, AreThoseOfDdpFor40LinearLayers) {
  const auto buckets = plan_buckets(Layout(linear_layers(40, 512)));
  EXPECT_EQ(payloads(buckets), (std::vector<std::size_t>{1'050'624, 26'265'600, 14'708'736}));
}

TEST(Buckets, CloseOnceTheyHoldTheirLimitAndNotBefore) {
  // In layout order 60, 40, 1, 99, 1, 200 bytes.
  const Layout layout({{"f", DType::kUInt8, 200},
                       {"e", DType::kUInt8, 1},
                       {"d", DType::kUInt8, 99},
                       {"c", DType::kUInt8, 1},
                       {"b", DType::kUInt8, 40},
                       {"a", DType::kUInt8, 60}});
  const auto buckets = plan_buckets(layout, {.first_limit_bytes = 100, .limit_bytes = 101});
  EXPECT_EQ(payloads(buckets), (std::vector<std::size_t>{100, 101, 200}));
}

TEST(Buckets, WithALimitOfZeroEveryParameterHasItsOwn) {
  const Layout layout(linear_layers(3, 8));
  EXPECT_EQ(plan_buckets(layout, {.first_limit_bytes = 0, .limit_bytes = 0}).size(), 6u);
}

TEST(Buckets, LieInALayoutOfOtherTypesAsThatSays) {
  const auto parameters = [](DType half) {
    return std::vector<Parameter>{{"c", DType::kFloat32, 5}, {"b", half, 33}, {"a", half, 1'000}};
  };
  const Layout narrow(parameters(DType::kBFloat16));
  const Layout wide(parameters(DType::kFloat32));
  const auto buckets = in_layout(plan_buckets(narrow), wide);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].entries, 2u);
  EXPECT_EQ(buckets[0].dtype, DType::kFloat32);
  EXPECT_EQ(buckets[0].payload_bytes, 4u * 1'033);
  EXPECT_EQ(buckets[0].bytes, wide.entries()[1].offset + 4 * 33);
  EXPECT_EQ(buckets[1].offset, wide.entries()[2].offset);
  EXPECT_EQ(buckets[1].bytes, 20u);
}

TEST(Buckets, HaveLotsOfLargeEntriesAloneAndOfOthersTogether) {
  // Registered in reverse: the layout begins with "a".
  const Layout layout({{"g", DType::kFloat32, 100},
                       {"f", DType::kBFloat16, 33},
                       {"e", DType::kBFloat16, 3},
                       {"d", DType::kBFloat16, 1'000},
                       {"c", DType::kBFloat16, 1'001},
                       {"b", DType::kBFloat16, 0},
                       {"a", DType::kBFloat16, 5}});
  const auto buckets = plan_buckets(layout);
  ASSERT_EQ(buckets.size(), 2u);
  const std::vector<Lot> expected{{0, 2, false, 32},    // 64 bytes, and none
                                  {2, 1, true, 1'001},  // exactly, whatever follows
                                  {3, 1, true, 1'000},
                                  {4, 2, false, 32 + 64}};
  EXPECT_EQ(plan_lots(layout, buckets[0], 2'000), expected);
  EXPECT_EQ(plan_lots(layout, buckets[1], 2'000), (std::vector<Lot>{{6, 1, false, 112}}));
  EXPECT_EQ(plan_lots(layout, buckets[1], 400), (std::vector<Lot>{{6, 1, true, 100}}));
}

TEST(Buckets, OfAnEmptyLayoutAreNone) {
  EXPECT_TRUE(plan_buckets(Layout({})).empty());
}

TEST(Buckets, NeverSpanTwoDtypesAndMoveNoMemory) {
  std::mt19937 random(1);
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat64};
  for (int round = 0; round < 200; ++round) {
    std::vector<Parameter> parameters;
    const int count = static_cast<int>(random() % 40);
    for (int i = 0; i < count; ++i) {
      parameters.push_back({fmt::format("p{}", i), dtypes[random() % 3], random() % 700});
    }
    const Layout layout(parameters);
    const BucketOptions options{.first_limit_bytes = random() % 2000,
                                .limit_bytes = random() % 9000};
    std::size_t next = 0;
    for (const Bucket& bucket : plan_buckets(layout, options)) {
      ASSERT_EQ(bucket.first_entry, next);
      ASSERT_GT(bucket.entries, 0u);
      std::size_t payload = 0;
      for (std::size_t i = next; i < next + bucket.entries; ++i) {
        const Entry& entry = layout.entries()[i];
        ASSERT_EQ(entry.dtype, bucket.dtype);
        ASSERT_EQ((entry.offset - bucket.offset) % size_of(bucket.dtype), 0u);
        ASSERT_LE(entry.offset + entry.bytes(), bucket.offset + bucket.bytes);
        payload += entry.bytes();
      }
      ASSERT_EQ(bucket.offset, layout.entries()[next].offset);
      ASSERT_EQ(bucket.payload_bytes, payload);
      ASSERT_EQ(bucket.count() * size_of(bucket.dtype), bucket.bytes);
      std::size_t in_lots = bucket.first_entry;
      for (const Lot& lot : plan_lots(layout, bucket, 1'000)) {
        ASSERT_EQ(lot.first_entry, in_lots);
        in_lots += lot.entries;
        const std::size_t end =
            layout.entries()[lot.first_entry].offset + lot.count * size_of(bucket.dtype);
        const Entry& last = layout.entries()[in_lots - 1];
        ASSERT_GE(end, last.offset + last.bytes());
        ASSERT_LE(end, in_lots < layout.entries().size() ? layout.entries()[in_lots].offset
                                                         : layout.bytes());
      }
      ASSERT_EQ(in_lots, bucket.first_entry + bucket.entries);
      next += bucket.entries;
    }
    ASSERT_EQ(next, layout.entries().size());
  }
}

}  // namespace
}  // namespace lockstep::plan
