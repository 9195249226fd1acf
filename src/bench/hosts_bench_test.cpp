#include "bench/hosts_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refused_hosts(const std::vector<std::string>& words) {
  try {
    parse_hosts_arguments(words);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST(BenchHostsTest, DefaultsAreTwoHostsOfTwoWorkersAtOneGigabit) {
  const HostsArguments arguments = parse_hosts_arguments({});
  EXPECT_EQ(arguments.hosts, 2);
  EXPECT_EQ(arguments.workers, 2);
  EXPECT_EQ(arguments.rate, 1e9);
  EXPECT_THAT(arguments.sizes, ElementsAre(std::size_t{16} << 20));
  EXPECT_THAT(arguments.loopback_sizes, ElementsAre(1024, std::size_t{64} << 20));
  EXPECT_THAT(arguments.rows, ElementsAre("loopback", "allreduce", "mlp", "cnn"));
  EXPECT_EQ(parse_hosts_arguments({"--rate", "250mbit"}).rate, 250e6);
}

TEST(BenchHostsTest, WhatCannotBeMeasuredIsRefused) {
  EXPECT_THAT(refused_hosts({"--hosts", "1"}), HasSubstr("--hosts 1: give a number from 2"));
  EXPECT_THAT(refused_hosts({"--workers", "0"}), HasSubstr("--workers 0"));
  EXPECT_THAT(refused_hosts({"--mtu", "100"}), HasSubstr("--mtu 100"));
  EXPECT_THAT(refused_hosts({"--rows", "gpt"}), HasSubstr("choose from loopback, allreduce"));
  EXPECT_THAT(refused_hosts({"--rows", ""}), HasSubstr("--rows: none given"));
  EXPECT_THAT(refused_hosts({"--sizes", "3"}), HasSubstr("lockstep bench hosts --help"));
  for (const char* rate : {"", "1", "gbit", "1Gbps", "-1gbit", "1kbit", "9999gbit"})
    EXPECT_THAT(refused_hosts({"--rate", rate}), HasSubstr("as in 1gbit")) << rate;
}

TEST(BenchHostsTest, TheLeastTimeIsThatOfTheBytesThatMustCrossTheNetwork) {
  EXPECT_DOUBLE_EQ(least_time(125'000'000, 2, 1e9), 1e6);
  EXPECT_DOUBLE_EQ(least_time(125'000'000, 4, 1e9), 1.5e6);
}

TEST(BenchHostsTest, EveryRowSaysItsRatioToItsPeersAndToTheLeastTime) {
  HostsSection section{.name = "allreduce",
                       .title = "a title",
                       .unit = "µs",
                       .bytes = 4,
                       .bases = {"sockets", "gloo"},
                       .least = 5,
                       .results = {{"lockstep", "tags", {}}, {"sockets", "bare", {}}}};
  section.results[0].add({R"({"bytes":4,"us":[20,20]})"});
  section.results[1].add({R"({"bytes":4,"us":[10]})"});
  const auto json = nlohmann::json::parse(as_json({section}));
  EXPECT_EQ(json[0]["times_of"]["sockets"], 2);
  EXPECT_EQ(json[0]["times_of"]["least"], 4);
  EXPECT_FALSE(json[0]["times_of"].contains("gloo")) << "it was not measured";
  EXPECT_EQ(json[0]["samples"], 2);
  EXPECT_THAT(as_table({section}), HasSubstr("÷ sockets"));
}

TEST(BenchHostsTest, TimesOfStepsAreReadToo) {
  HostsResult result;
  result.add({R"({"rank":0,"pss_mb":1,"state_mb":1,"step_ms":[4,5]})"});
  EXPECT_THAT(result.samples, ElementsAre(4, 5));
  EXPECT_THROW(result.add({}), Error);
}

}  // namespace
}  // namespace lockstep::bench
