// The engine on a device made of threads, beside a link without a board and one with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "tests/comm/nccl/fake_worlds.h"
#include "tests/support/slow_build.h"

namespace lockstep::testing {
namespace {

struct Run {
  std::string host;
  DeviceCase one;
};

void PrintTo(const Run& run, std::ostream* out) {
  *out << run.host << ' ' << run.one.name;
}

class NcclConformance : public ::testing::TestWithParam<Run> {};

TEST_P(NcclConformance, OnAFakeDevice) {
  for (const int size : GetParam().one.sizes) {
    if (kSlowBuild && size > 3 && size != GetParam().one.sizes.front()) continue;
    const auto device = std::make_shared<FakeDevice>();
    const WorldSpec spec{GetParam().host, size, std::chrono::milliseconds(20'000)};
    const auto outcomes =
        run_on(device, spec, [&](Comm& comm) { GetParam().one.body(comm, *device); });
    for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.text;
    EXPECT_EQ(device->aborts(), 0) << "workers that leave together leave in peace";
    EXPECT_EQ(device->left_over(), 0U) << "all that was taken is given back";
  }
}

std::vector<Run> runs() {
  std::vector<Run> all;
  for (const char* host : {"thread", "shm"}) {
    for (const DeviceCase& one : device_cases()) all.push_back({host, one});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Host, NcclConformance, ::testing::ValuesIn(runs()),
                         [](const auto& run) { return run.param.host + "_" + run.param.one.name; });

}  // namespace
}  // namespace lockstep::testing
