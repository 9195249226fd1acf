// What kernels of a device do with a chunk, compiled for the host and held to the CPU's kernels.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/kernels/cases.h"

namespace lockstep::testing {
namespace {

TEST(DeviceText, UpdatesWithTheBitsOfTheCpu) {
  expect_updates_of_the_cpu(*make_host_machine());
}

TEST(DeviceText, WatchesWithTheParitiesOfTheCpu) {
  expect_watched_updates_of_the_cpu(*make_host_machine());
}

TEST(DeviceText, SkipsAStepWhole) {
  expect_nothing_written_when_skipped(*make_host_machine());
}

TEST(DeviceText, FindsTheNormOfTheCpu) {
  expect_norms_of_the_cpu(*make_host_machine());
}

TEST(DeviceText, FindsTheTrustsOfTheCpu) {
  expect_trusts_of_the_cpu(*make_host_machine());
}

TEST(DeviceText, AddsSquaresInTheOrderOfTheTree) {
  std::vector<std::size_t> sizes(301);
  std::iota(sizes.begin(), sizes.end(), 0);
  for (const std::size_t more : {2047, 2048, 2049, 4096, 4097, 3 * 2048 + 5, 70'001})
    sizes.push_back(more);
  expect_the_order_of_the_tree(*make_host_machine(), sizes);
}

TEST(DeviceText, GathersGradients) {
  expect_gradients_gathered(*make_host_machine(), true);
}

TEST(DeviceText, LeavesGradientsAlone) {
  expect_gradients_gathered(*make_host_machine(), false);
}

TEST(DeviceText, KeepsTypesApartThatLieBesideEachOther) {
  expect_types_beside_each_other(*make_host_machine());
}

}  // namespace
}  // namespace lockstep::testing
