#include "control/launch/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <functional>

namespace lockstep::control {
namespace {

using testing::HasSubstr;

RunOptions valid() {
  RunOptions options;
  options.workers = 2;
  options.command = {"./train"};
  return options;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RunOptionsTest, OrdinaryOptionsPass) {
  EXPECT_NO_THROW(check(valid()));
}

TEST(RunOptionsTest, EachValueOutOfRangeIsNamed) {
  const auto after = [](const std::function<void(RunOptions&)>& change) {
    RunOptions options = valid();
    change(options);
    return refusal([&] { check(options); });
  };
  EXPECT_THAT(after([](auto& o) { o.workers = 0; }), HasSubstr("-n 0"));
  EXPECT_THAT(after([](auto& o) { o.workers = 4097; }), HasSubstr("4096"));
  EXPECT_THAT(after([](auto& o) { o.command = {}; }), HasSubstr("no program"));
  EXPECT_THAT(after([](auto& o) { o.command = {""}; }), HasSubstr("no program"));
  EXPECT_THAT(after([](auto& o) { o.threads = 0; }), HasSubstr("--threads 0"));
  EXPECT_THAT(after([](auto& o) { o.timeout_s = -1; }), HasSubstr("--timeout -1"));
  EXPECT_THAT(after([](auto& o) { o.grace = std::chrono::milliseconds(-500); }),
              HasSubstr("--grace -0.5"));
}

TEST(RunOptionsTest, WorkersAreReplacedOnlyIfAskedFor) {
  RunOptions options = valid();
  EXPECT_FALSE(elastic(options));
  options.max_restarts = 0;
  EXPECT_TRUE(elastic(options));
  options.max_restarts.reset();
  options.min_workers = 2;
  EXPECT_TRUE(elastic(options));
  EXPECT_NO_THROW(check(options));
}

TEST(RunOptionsTest, WhatReplacementNeedsIsNamed) {
  const auto after = [](const std::function<void(RunOptions&)>& change) {
    RunOptions options = valid();
    options.max_restarts = 3;
    change(options);
    return refusal([&] { check(options); });
  };
  EXPECT_THAT(after([](auto& o) { o.min_workers = 0; }), HasSubstr("--min-workers 0"));
  EXPECT_THAT(after([](auto& o) { o.min_workers = 3; }), HasSubstr("ask for 1 to 2"));
  EXPECT_THAT(after([](auto& o) { o.max_restarts = -1; }), HasSubstr("--max-restarts -1"));
  EXPECT_THAT(after([](auto& o) { o.max_restarts = 1'000'001; }), HasSubstr("1000000"));
  EXPECT_THAT(after([](auto& o) { o.step_timeout_s = 0; }), HasSubstr("--step-timeout 0"));
  EXPECT_THAT(after([](auto& o) { o.step_timeout_s = 86401; }), HasSubstr("--step-timeout 86401"));
  EXPECT_THAT(after([](auto& o) { o.timeout_s = 20; }), HasSubstr("longer than --step-timeout 30"));
  EXPECT_EQ(after([](auto& o) { o.nodes = {2, 0, "a:1", "f"}; }), "accepted");
}

TEST(ParseWorkersTest, IsANumberOrTwo) {
  EXPECT_EQ(parse_workers("-n", "4")->least, 4);
  EXPECT_EQ(parse_workers("-n", "4")->most, std::nullopt);
  EXPECT_EQ(parse_workers("-n", "2:8")->least, 2);
  EXPECT_EQ(parse_workers("-n", "2:8")->most, 8);
  for (const char* text : {"", ":", "2:", ":8", "a:b", "2:8:9", "2-8", "99999999999"})
    EXPECT_FALSE(parse_workers("-n", text)) << text;
  EXPECT_EQ(refusal([] { parse_workers("-n", "8:2"); }),
            "-n 8:2: the least comes first; did you mean 2:8?");
  EXPECT_THAT(refusal([] { parse_workers("-n", "0:2"); }), HasSubstr("1 to 4096"));
  EXPECT_THAT(refusal([] { parse_workers("-n", "1:4097"); }), HasSubstr("1 to 4096"));
}

TEST(ParseWorkersTest, TheHostDecidesWithinTheLimits) {
  const WorkersAsked asked{2, 8};
  EXPECT_EQ(asked.start_with(1), 2);
  EXPECT_EQ(asked.start_with(5), 5);
  EXPECT_EQ(asked.start_with(64), 8);
  EXPECT_EQ((WorkersAsked{3, std::nullopt}.start_with(64)), 3);
}

TEST(ParseVariableTest, TheFirstEqualsSignDivides) {
  EXPECT_EQ(parse_variable("A=b=c"), std::pair(std::string("A"), std::string("b=c")));
  EXPECT_EQ(parse_variable("A="), std::pair(std::string("A"), std::string("")));
}

TEST(ParseVariableTest, WhatIsNoVariableIsRefused) {
  for (const char* text : {"", "A", "=b", "1A=b", "A B=c", "A-B=c"}) {
    EXPECT_THAT(refusal([&] { parse_variable(text); }), HasSubstr("not KEY=VALUE")) << text;
  }
}

TEST(ParseVariableTest, WhatTheLauncherNumbersIsRefused) {
  EXPECT_THAT(refusal([] { parse_variable("RANK=3"); }), HasSubstr("RANK"));
  EXPECT_THAT(refusal([] { parse_variable("LOCKSTEP_SECRET_FD=3"); }),
              HasSubstr("LOCKSTEP_SECRET_FD"));
}

}  // namespace
}  // namespace lockstep::control
