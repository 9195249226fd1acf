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
