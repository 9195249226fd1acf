#include "bench/measure/time_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "control/launch/output.h"

namespace lockstep::bench {
namespace {

using testing::ElementsAre;

TEST(BenchLinesTest, AnyNumberOfTimesGetsThroughTheLauncherOfTheMostWorkers) {
  const std::size_t limit = control::line_limit(2 * 256);
  const std::vector<double> times(100'000, 123'456'789.123456);
  for (const auto format : {std::chars_format::fixed, std::chars_format::general}) {
    const auto lines = lines_of_times({"\"rank\":7", "\"pss_mb\":1", "step_ms", format}, times);
    std::size_t read = 0;
    for (const std::string& line : lines) {
      EXPECT_LT(line.size(), limit);
      const auto json = nlohmann::json::parse(line);
      EXPECT_EQ(json.at("rank"), 7);
      EXPECT_EQ(json.contains("pss_mb"), read == 0);
      read += json.at("step_ms").size();
    }
    EXPECT_EQ(read, times.size());
  }
}

TEST(BenchLinesTest, TimesHaveFourDigits) {
  const std::vector<double> times = {12.3456789, 0.00001, 1e9};
  EXPECT_THAT(lines_of_times({"\"a\":1", "", "ms"}, times),
              ElementsAre(R"({"a":1,"ms":[12.3457,0.0000,1000000000.0000]})"));
  EXPECT_THAT(lines_of_times({"\"a\":1", "\"b\":2", "us", std::chars_format::general}, times),
              ElementsAre(R"({"a":1,"b":2,"us":[12.35,1e-05,1e+09]})"));
  EXPECT_THAT(lines_of_times({"\"a\":1", "", "ms"}, {}), ElementsAre(R"({"a":1,"ms":[]})"));
}

}  // namespace
}  // namespace lockstep::bench
