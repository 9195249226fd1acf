#include "control/launch/hosts_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <csignal>

#include "control/launch/remote.h"

namespace lockstep::control {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const HostsState::Clock::time_point kHostsBegin{seconds(1000)};

// Their launchers have begun.
HostsState two_hosts(bool elastic = false) {
  HostsState state({{"node0", 4}, {"node1", 4}}, {.grace = seconds(10), .elastic = elastic},
                   kHostsBegin);
  EXPECT_TRUE(state.on_begun(0));
  EXPECT_TRUE(state.on_begun(1));
  EXPECT_FALSE(state.on_begun(1));
  return state;
}
HostsState two_silent_hosts() {
  return HostsState({{"node0", 4}, {"node1", 4}}, {.grace = seconds(10), .to_begin = seconds(50)},
                    kHostsBegin);
}
WorkerEnd host_exited(int host, int code) {
  return {host, WorkerEnd::How::kExited, code};
}

TEST(HostsStateTest, IfWorkersMayLeaveTheFirstHostGoesOnWithoutAnother) {
  HostsState state = two_hosts(true);
  state.on_end(host_exited(1, 255), kHostsBegin);
  EXPECT_FALSE(state.ending());
  state.on_time(kHostsBegin + std::chrono::hours(1));
  EXPECT_FALSE(state.ending());
  EXPECT_TRUE(state.on_end(host_exited(0, 0), kHostsBegin).release);
  EXPECT_EQ(state.verdict().code, 0);
  EXPECT_EQ(state.verdict().what, "");
}

TEST(HostsStateTest, ButNobodyGoesOnWithoutTheFirst) {
  HostsState state = two_hosts(true);
  state.on_end(host_exited(0, 255), kHostsBegin);
  EXPECT_TRUE(state.ending());
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
  auto state = two_silent_hosts();
  state.on_begun(0);
  state.on_end(host_exited(1, 255), kHostsBegin);
  EXPECT_TRUE(state.ending());
  EXPECT_FALSE(state.on_time(kHostsBegin).hang_up);
  EXPECT_TRUE(state.on_time(*state.deadline()).hang_up);
  EXPECT_TRUE(state.on_end(host_exited(0, 129), kHostsBegin + seconds(4)).release);
  EXPECT_EQ(state.verdict().code, 1);
  EXPECT_THAT(state.verdict().what, HasSubstr("node1 could not be reached"));
  EXPECT_THAT(state.verdict().what, HasSubstr("`ssh node1 true`"));
}

TEST(HostsStateTest, LostConnectionIsNoHostThatWasNeverReached) {
  auto state = two_hosts();
  state.on_end(host_exited(1, 255), kHostsBegin);
  state.on_end(host_exited(0, 1), kHostsBegin);
  EXPECT_EQ(state.verdict().code, 1);
  EXPECT_THAT(state.verdict().what, HasSubstr("the connection to node1 was lost"));
}

TEST(HostsStateTest, WorkersMayExitWithTheCodesOfShells) {
  for (const int code : {255, 127}) {
    auto state = two_hosts();
    state.on_end(host_exited(1, code), kHostsBegin);
    state.on_end(host_exited(0, code), kHostsBegin);
    EXPECT_EQ(state.verdict().code, code);
    EXPECT_EQ(state.verdict().what, "");
  }
}

TEST(HostsStateTest, HostWithoutLockstepIsNamed) {
  auto state = two_silent_hosts();
  state.on_begun(1);
  state.on_end(host_exited(0, 127), kHostsBegin);
  state.on_end(host_exited(1, 129), kHostsBegin);
  EXPECT_EQ(state.verdict().code, 127);
  EXPECT_THAT(state.verdict().what, HasSubstr("could not be started on node0 (code 127)"));
}

TEST(HostsStateTest, EveryCauseHasOneLine) {
  HostsState state({{"a", 1}, {"b", 1}, {"c", 1}}, {.shell = "rsh -x"}, kHostsBegin);
  for (const int host : {2, 1, 0}) state.on_end(host_exited(host, host == 1 ? 3 : 1), kHostsBegin);
  EXPECT_EQ(state.verdict().code, 1);
  const std::string what = state.verdict().what;
  EXPECT_THAT(what, HasSubstr("the remote shells of a and c exited with code 1 before"));
  EXPECT_THAT(what, HasSubstr("\nlockstep: the remote shell of b exited with code 3 before"));
  EXPECT_THAT(what, HasSubstr("`rsh -x a true`"));
  EXPECT_EQ(std::count(what.begin(), what.end(), '\n'), 1);
}

TEST(HostsStateTest, ManyHostsAreNotAllListed) {
  std::vector<HostSpec> hosts;
  for (int i = 0; i < 1000; ++i) hosts.push_back({"node" + std::to_string(i), 1});
  HostsState state(hosts, {}, kHostsBegin);
  for (int i = 0; i < 1000; ++i) state.on_end(host_exited(i, 1), kHostsBegin);
  EXPECT_THAT(state.verdict().what, HasSubstr("node6, node7 and 992 more exited with code 1"));
}

TEST(HostsStateTest, KilledShellIsNoLauncher) {
  auto state = two_hosts();
  state.on_end({1, WorkerEnd::How::kKilled, SIGKILL}, kHostsBegin);
  state.on_end({0, WorkerEnd::How::kKilled, SIGKILL}, kHostsBegin);
  EXPECT_EQ(state.verdict().code, 137);
  EXPECT_THAT(state.verdict().what, HasSubstr("the remote shell of node1 was killed by SIGKILL"));
}

TEST(HostsStateTest, LauncherThatLostAnotherIsNotTheCause) {
  auto killed = two_hosts();
  killed.on_end(host_exited(0, 1), kHostsBegin);
  killed.on_end({1, WorkerEnd::How::kKilled, SIGKILL}, kHostsBegin);
  EXPECT_EQ(killed.verdict().code, 137);
  EXPECT_THAT(killed.verdict().what, HasSubstr("the remote shell of node1 was killed"));

  auto cut = two_hosts();
  cut.on_end(host_exited(0, 1), kHostsBegin);
  cut.on_end(host_exited(1, 255), kHostsBegin);
  EXPECT_EQ(cut.verdict().code, 1);
  EXPECT_THAT(cut.verdict().what, HasSubstr("the connection to node1 was lost"));

  auto lacking = two_silent_hosts();
  lacking.on_begun(0);
  lacking.on_end(host_exited(0, 1), kHostsBegin);
  lacking.on_end(host_exited(1, 127), kHostsBegin);
  EXPECT_EQ(lacking.verdict().code, 127);
  EXPECT_THAT(lacking.verdict().what, HasSubstr("could not be started on node1"));
}

TEST(HostsStateTest, ShellsThatLoseExitCodesAreNamedAndAreNoSuccess) {
  auto one = two_hosts();
  one.on_end(end_of_shell(host_exited(0, kDoneThere)), kHostsBegin);
  one.on_end(end_of_shell(host_exited(1, 0)), kHostsBegin);
  EXPECT_EQ(one.verdict().code, 1);
  EXPECT_THAT(one.verdict().what, HasSubstr("of node1 ended with code 0, and did not pass on"));

  auto all = two_hosts();
  all.on_end(end_of_shell(host_exited(0, 0)), kHostsBegin);
  all.on_end(end_of_shell(host_exited(1, 0)), kHostsBegin);
  EXPECT_EQ(all.verdict().code, 1);
  EXPECT_THAT(all.verdict().what, HasSubstr("of node0 and node1 ended with code 0"));
}

TEST(HostsStateTest, LaunchersThatDoNotBeginInTimeAreNotWaitedFor) {
  auto state = two_silent_hosts();
  state.on_begun(1);
  EXPECT_EQ(state.deadline(), kHostsBegin + seconds(50));
  EXPECT_TRUE(state.on_time(*state.deadline()).hang_up);
  EXPECT_LE(*state.deadline(), kHostsBegin + seconds(53));  // there are no workers: no grace
  state.on_end(host_exited(1, 129), kHostsBegin + seconds(51));
  EXPECT_TRUE(state.on_time(*state.deadline()).release);
  EXPECT_EQ(state.verdict().code, 1);
  EXPECT_THAT(state.verdict().what, HasSubstr("of node0 has not started `lockstep` in time"));

  auto good = two_hosts();
  EXPECT_FALSE(good.on_time(*good.deadline()).hang_up);
  EXPECT_FALSE(good.deadline());
}

TEST(HostsStateTest, BeforeAllHaveBegunASignalNeedsNoGrace) {
  auto state = two_silent_hosts();
  state.on_begun(1);
  EXPECT_TRUE(state.on_signal(SIGINT, kHostsBegin).hang_up);
  EXPECT_LE(*state.deadline(), kHostsBegin + seconds(3));
  EXPECT_TRUE(state.on_time(*state.deadline()).release);
  EXPECT_EQ(state.verdict().code, 130);
  EXPECT_THAT(state.verdict().what, HasSubstr("of node0 and node1 did not end and were killed"));
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
  EXPECT_LE(*state.deadline(), kHostsBegin + seconds(15));
  state.on_end(host_exited(0, 143), kHostsBegin + seconds(12));
  EXPECT_TRUE(state.on_time(*state.deadline()).release);
  EXPECT_EQ(state.verdict().code, 143);
  EXPECT_EQ(state.verdict().what,
            "the remote shell of node1 did not end and was killed; processes may still run there: "
            "see `ssh node1 ps -ef`");
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
