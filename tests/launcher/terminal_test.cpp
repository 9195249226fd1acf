// What happens on a terminal: colours, and Ctrl-C, which the terminal sends by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/launcher/terminal.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

TEST(TerminalTest, PrefixIsColouredUnlessNoColorIsSet) {
  OnTerminal plain({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/echo", "text"}, true);
  EXPECT_EQ(plain.finish(seconds(20)), 0);
  EXPECT_EQ(plain.screen(), "[0] text\r\n");
  OnTerminal coloured({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/echo", "text"}, false);
  EXPECT_EQ(coloured.finish(seconds(20)), 0);
  EXPECT_THAT(coloured.screen(), HasSubstr("\x1b["));
  EXPECT_THAT(coloured.screen(), HasSubstr("text\r\n"));
}

TEST(TerminalTest, CtrlCArrivesOnceAtEachWorker) {
  OnTerminal terminal({LOCKSTEP_BINARY, "run", "-n", "3", "--", ACTOR_BINARY, "catch"}, true);
  ASSERT_TRUE(terminal.wait_for("ready", 3, seconds(20)));
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(seconds(20)), 130);
  EXPECT_EQ(count(terminal.screen(), "caught " + std::to_string(SIGINT)), 3) << terminal.screen();
}

TEST(TerminalTest, SecondCtrlCKills) {
  OnTerminal terminal(
      {LOCKSTEP_BINARY, "run", "-n", "2", "--grace", "100", "--", ACTOR_BINARY, "stubborn"}, true);
  ASSERT_TRUE(terminal.wait_for("ready", 2, seconds(20)));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("passed SIGINT on", 1, seconds(20)));
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(seconds(20)), 130);
}

}  // namespace
}  // namespace lockstep::testing
