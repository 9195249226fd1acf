#include "control/rendezvous/log_limiter.h"

#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using std::chrono::seconds;

TEST(LogLimiterTest, AFloodIsCountedNotLogged) {
  LogLimiter limiter(2, seconds(10));
  const LogLimiter::TimePoint start{seconds(100)};
  EXPECT_EQ(limiter.pass(start), 0u);
  EXPECT_EQ(limiter.pass(start), 0u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limiter.pass(start + seconds(9)), std::nullopt);
  EXPECT_EQ(limiter.pass(start + seconds(10)), 1000u);
  EXPECT_EQ(limiter.pass(start + seconds(10)), 0u);
}

}  // namespace
}  // namespace lockstep::control
