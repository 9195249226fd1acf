#include "bench/faults_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(FaultsBench, OptionsHaveDefaultsAndLimits) {
  const FaultsArguments parsed = parse_faults_arguments({});
  EXPECT_EQ(parsed.workers, 2);
  EXPECT_EQ(parsed.minutes, 10);
  EXPECT_THAT(parsed.rows, ElementsAre("kills", "rate", "cost"));
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--rows", "lunch"},
                                                {"--rows", ","},
                                                {"--workers", "1"},
                                                {"--kills", "0"},
                                                {"--minutes", "0"},
                                                {"--model", "lunch"},
                                                {"--optimizer", "lunch"},
                                                {"--peers", "gloo"},
                                                {"--plot", "/no/such/folder/faults.svg"}}) {
    try {
      parse_faults_arguments(words);
      ADD_FAILURE() << words[0] << ' ' << words[1] << " was accepted";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("see `lockstep bench faults --help`"));
    }
  }
}

TEST(FaultsBench, AReportHasWhatWasMeasuredAndItsAims) {
  FaultsReport report{.workers = 2, .batch = 32, .minutes = 2};
  report.kills = {{4}, {150, 160, 170}, {2000}, {90, 100, 110}};
  report.calm = {1000};
  report.disturbed = {980};
  for (const char* name : {"adamw", "adamw --max-restarts 5"}) {
    report.costs.emplace_back();
    report.costs.back().system = name;
  }
  report.costs[0].step_ms = {50};
  report.costs[1].step_ms = {51};
  const auto json = nlohmann::json::parse(as_json(report));
  ASSERT_EQ(json.size(), 9U);
  EXPECT_EQ(json[3]["name"], "beyond_a_step_ms");
  EXPECT_EQ(json[3]["p50"], 60);
  EXPECT_EQ(json[6]["ratio"], 0.98);
  EXPECT_EQ(json[8]["ratio"], 1.02);
  EXPECT_TRUE(json[7]["ratio"].is_null());
  EXPECT_THAT(as_table(report), HasSubstr("kill to noticed by the launcher"));
  EXPECT_THAT(as_table(report), HasSubstr("<= 1.015"));
  EXPECT_THAT(as_plot(report), HasSubstr("<svg"));
  EXPECT_THAT(as_plot(FaultsReport()), HasSubstr("<svg"));
}

}  // namespace
}  // namespace lockstep::bench
