#include "control/launch/hosts_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <csignal>

#include "control/launch/remote.h"

namespace lockstep::control {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const HostsState::Clock::time_point kHostsBegin{seconds(1000)};

HostsState two_hosts() {
  return HostsState({{"node0", 4}, {"node1", 4}}, seconds(10));
}
WorkerEnd host_exited(int host, int code) {
  return {host, WorkerEnd::How::kExited, code};
}

TEST(ParseHostsTest, EachHostHasAName) {
  EXPECT_THAT(parse_hosts("node0:4,me@node1:2", 0),
              ElementsAre(HostSpec{"node0", 4}, HostSpec{"me@node1", 2}));
  EXPECT_THAT(parse_hosts("node0,node1:2,[::1]", 3),
              ElementsAre(HostSpec{"node0", 3}, HostSpec{"node1", 2}, HostSpec{"[::1]", 3}));
}

TEST(ParseHostsTest, WhatCannotBeUnderstoodIsNamed) {
  for (const char* bad : {"", "node0", "node0:", "node0:x", "node0:0", "node0:4,", ":4", "-oX:1",
                          "a b:1", "node0:99999"}) {
    try {
      parse_hosts(bad, 0);
      ADD_FAILURE() << bad;
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("--hosts"));
    }
  }
}

TEST(RemoteCommandTest, WordsSurviveTheShellThere) {
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  RunOptions options;
  options.nodes.rendezvous = "node0:29400";
  options.hosts.lockstep = "/opt/lockstep";
  const auto line =
      remote_command(options, {{"run", "-q"}, {"--", "./a b"}}, {{"node0", 4}, {"node1", 2}}, 1);
  EXPECT_THAT(line, HasSubstr("cd '/"));
  EXPECT_THAT(line,
              EndsWith(" && exec '/opt/lockstep' 'run' '-q' '--nodes' '2' '--node-rank' '1' "
                       "'--rendezvous' 'node0:29400' '--lifeline' '--workers' '2' '--' './a b'"));
}

TEST(HostsStateTest, HostsThatAgreeDecideTheCode) {
  auto state = two_hosts();
  EXPECT_FALSE(state.on_end(host_exited(1, 7), kHostsBegin).release);
  EXPECT_TRUE(state.on_end(host_exited(0, 7), kHostsBegin).release);
  EXPECT_EQ(state.verdict().code, 7);
  EXPECT_EQ(state.verdict().what, "");
}

TEST(HostsStateTest, SuccessEverywhereIsSuccess) {
  auto state = two_hosts();
  state.on_end(host_exited(1, 0), kHostsBegin);
  EXPECT_TRUE(state.on_end(host_exited(0, 0), kHostsBegin).release);
  EXPECT_EQ(state.verdict().code, 0);
  EXPECT_FALSE(state.ending());
}

TEST(HostsStateTest, HostThatCannotBeReachedEndsTheOthersAndIsNamed) {
  auto state = two_hosts();
  state.on_end(host_exited(1, 255), kHostsBegin);
  EXPECT_TRUE(state.ending());
  EXPECT_FALSE(state.on_time(kHostsBegin).hang_up);
  EXPECT_TRUE(state.on_time(*state.deadline()).hang_up);
  EXPECT_TRUE(state.on_end(host_exited(0, 129), kHostsBegin + seconds(4)).release);
  EXPECT_EQ(state.verdict().code, 1);
  EXPECT_THAT(state.verdict().what, HasSubstr("node1 could not be reached"));
}

TEST(HostsStateTest, HostWithoutLockstepIsNamed) {
  auto state = two_hosts();
  state.on_end(host_exited(0, 127), kHostsBegin);
  state.on_end(host_exited(1, 129), kHostsBegin);
  EXPECT_EQ(state.verdict().code, 127);
  EXPECT_THAT(state.verdict().what, HasSubstr("node0 has not what is needed"));
}

TEST(HostsStateTest, SignalGoesToEveryHostAndIsTheCause) {
  auto state = two_hosts();
  EXPECT_EQ(state.on_signal(SIGUSR1, kHostsBegin).signal, SIGUSR1);
  EXPECT_FALSE(state.ending());
  EXPECT_EQ(state.on_signal(SIGINT, kHostsBegin).signal, SIGINT);
  EXPECT_EQ(state.on_signal(SIGINT, kHostsBegin).signal, SIGINT);
  state.on_end(host_exited(0, 130), kHostsBegin);
  EXPECT_TRUE(state.on_end(host_exited(1, 130), kHostsBegin).release);
  EXPECT_EQ(state.verdict().code, 130);
}

TEST(HostsStateTest, HostsThatDoNotEndAreHungUpAndThenKilled) {
  auto state = two_hosts();
  state.on_signal(SIGTERM, kHostsBegin);
  ASSERT_TRUE(state.deadline());
  EXPECT_GE(*state.deadline(), kHostsBegin + seconds(10));
  EXPECT_TRUE(state.on_time(*state.deadline()).hang_up);
  EXPECT_TRUE(state.on_time(*state.deadline()).release);
  EXPECT_EQ(state.verdict().code, 143);
}

TEST(HostsStateTest, AfterASecondSignalAShellThatHangsIsNotWaitedFor) {
  auto state = two_hosts();
  state.on_signal(SIGINT, kHostsBegin);
  state.on_signal(SIGINT, kHostsBegin + seconds(1));
  EXPECT_LE(*state.deadline(), kHostsBegin + seconds(3));
  EXPECT_TRUE(state.on_time(*state.deadline()).hang_up);
  EXPECT_LE(*state.deadline(), kHostsBegin + seconds(5));
  EXPECT_TRUE(state.on_time(*state.deadline()).release);
}

TEST(HostsStateTest, LostOutputEndsTheJob) {
  auto state = two_hosts();
  EXPECT_EQ(state.on_output_closed(EPIPE, kHostsBegin).signal, SIGTERM);
  state.on_end(host_exited(0, 143), kHostsBegin);
  state.on_end(host_exited(1, 143), kHostsBegin);
  EXPECT_EQ(state.verdict().code, 141);
}

}  // namespace
}  // namespace lockstep::control
