// `lockstep run --nodes`: two or three launchers on this machine stand for as many hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/launcher/nodes.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class NodesTest : public Nodes {
 protected:
  Command faulty(int rank, const Words& options) const {
    return node(rank, 1, {JOIN_ACTOR_BINARY, "faults", "10"}, options);
  }
};

TEST_F(NodesTest, FaultsOfNode0AreForTheWorkersOfAllNodes) {
  const Words list = {"--faults", "slow@2:0:forward:1ms,slow@2:1:forward:1ms,kill@99:1:forward"};
  for (const Words& other : {Words{}, list}) {
    Command first = faulty(0, list);
    Command second = faulty(1, other);
    ASSERT_TRUE(first.finish(seconds(30)) && second.finish(seconds(30)));
    EXPECT_EQ(first.exit_code(), 0) << first.err();
    EXPECT_THAT(second.err(), HasSubstr("[1] lockstep: fault slow@2:1:forward:1ms"));
    EXPECT_THAT(first.err(), HasSubstr("1 of 3 faults never struck: kill@99:1:forward;"));
    EXPECT_THAT(second.err(), Not(HasSubstr("never struck"))) << "it is told once";
  }
}

TEST_F(NodesTest, OtherFaultsThanNode0HasAreRefusedEverywhere) {
  for (const Words& of_node_0 : {Words{}, Words{"--faults", "kill@5:0:forward"}}) {
    Command first = faulty(0, of_node_0);
    Command second = faulty(1, {"--faults", "kill@1:1:forward"});
    ASSERT_TRUE(first.finish(seconds(30)) && second.finish(seconds(30)));
    for (const Command* one : {&first, &second}) {
      EXPECT_EQ(one->exit_code(), 2) << one->err();
      EXPECT_THAT(one->err(), HasSubstr("give them to node 0 alone, for all workers, or the same"));
    }
  }
}

TEST_F(NodesTest, WorkersOfAllHostsJoinOneWorld) {
  Command first = node(0, 2, {JOIN_ACTOR_BINARY}, {}, 3);
  Command second = node(1, 1, {JOIN_ACTOR_BINARY}, {}, 3);
  Command third = node(2, 3, {JOIN_ACTOR_BINARY}, {}, 3);
  for (Command* command : {&first, &second, &third}) {
    ASSERT_TRUE(command->finish(seconds(60)));
    EXPECT_EQ(command->exit_code(), 0) << command->err();
    EXPECT_EQ(command->err(), "");
  }
  EXPECT_THAT(first.out(), HasSubstr("[1] joined lockstep rank 1 of 6 sum 21"));
  EXPECT_THAT(second.out(), HasSubstr("[2] joined lockstep rank 2 of 6 sum 21"));
  EXPECT_THAT(third.out(), HasSubstr("[5] joined lockstep rank 5 of 6 sum 21"));
  EXPECT_EQ(count(third.out(), "joined"), 3);
}

TEST_F(NodesTest, LogsAndVariablesCountOverAllHosts) {
  const Words role = {"env", "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"};
  Command first = actor(0, 2, role, {"--log-dir", folder_});
  Command second = actor(1, 1, role, {"--log-dir", folder_});
  ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
  EXPECT_EQ(second.out(),
            "[2] RANK=2\n[2] LOCAL_RANK=0\n[2] WORLD_SIZE=3\n[2] GROUP_RANK=1\n[2] "
            "MASTER_ADDR=127.0.0.1\n");
  for (const char* name : {"rank-0.out", "rank-1.err", "rank-2.out"})
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + name)) << name;
}

TEST_F(NodesTest, FirstFailureDecidesTheCodeOfEveryHost) {
  for (const char* rank : {"0", "2"}) {
    SCOPED_TRACE(rank);
    Command first = actor(0, 2, {"exit", rank, "7"});
    Command second = actor(1, 1, {"exit", rank, "7"});
    ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
    EXPECT_EQ(first.exit_code(), 7) << first.err();
    EXPECT_EQ(second.exit_code(), 7) << second.err();
    const bool is_first = *rank == '0';
    const Command& own = is_first ? first : second;
    const Command& other = is_first ? second : first;
    const std::string named =
        std::string("rank ") + rank + (is_first ? " on node 0 (" : " on node 1 (");
    EXPECT_THAT(own.err(), HasSubstr(named));
    EXPECT_THAT(own.err(), HasSubstr("Its last lines:\n  | about to fail\n  | the reason"));
    EXPECT_THAT(other.err(), HasSubstr(named));
    EXPECT_THAT(other.err(), HasSubstr("Its last lines are in the output of node "));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
  }
}

TEST_F(NodesTest, CauseIsFoundAcrossHosts) {
  Command first = node(0, 1, {JOIN_ACTOR_BINARY, "throw", "1"});
  Command second = node(1, 1, {JOIN_ACTOR_BINARY, "throw", "1"});
  ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
  EXPECT_EQ(first.exit_code(), 7) << first.err();
  EXPECT_EQ(second.exit_code(), 7) << second.err();
  EXPECT_THAT(first.err(), HasSubstr("rank 1 on node 1"));
}

TEST_F(NodesTest, SignalToOneLauncherEndsTheJobOnAllHosts) {
  for (const bool to_first : {true, false}) {
    Command first = actor(0, 2, {"catch"});
    Command second = actor(1, 1, {"catch"});
    ASSERT_TRUE(first.wait_for("ready", 2, seconds(20)) &&
                second.wait_for("ready", 1, seconds(20)));
    first.signal(SIGUSR1);
    ASSERT_TRUE(first.wait_for("caught 10", 2, seconds(20)));
    ASSERT_TRUE(second.wait_for("[2] caught 10", 1, seconds(20)));
    (to_first ? first : second).signal(SIGINT);
    ASSERT_TRUE(first.finish(seconds(20)) && second.finish(seconds(20)));
    EXPECT_EQ(first.exit_code(), 130);
    EXPECT_EQ(second.exit_code(), 130);
    EXPECT_EQ(count(first.out(), "caught 2\n"), 2);
    EXPECT_EQ(count(second.out(), "caught 2\n"), 1);
    EXPECT_THAT(first.err(),
                HasSubstr(to_first ? "passed SIGINT on;" : "passed SIGINT on from node 1"));
  }
}

TEST_F(NodesTest, SecondCtrlCOnAnyHostKillsEverywhere) {
  Command first = actor(0, 1, {"stubborn"});
  Command second = actor(1, 1, {"stubborn"});
  ASSERT_TRUE(first.wait_for("ready", 1, seconds(20)) && second.wait_for("ready", 1, seconds(20)));
  first.signal(SIGINT);
  ASSERT_TRUE(first.wait_for_in_err("passed SIGINT on", seconds(20)));
  second.signal(SIGINT);
  ASSERT_TRUE(first.finish(seconds(8)) && second.finish(seconds(8)));
  EXPECT_EQ(first.exit_code(), 130);
  EXPECT_EQ(second.exit_code(), 130);
}

TEST_F(NodesTest, CtrlZDoesNotStopAJobOnSeveralHosts) {
  Command first = actor(0, 1, {"catch"});
  Command second = actor(1, 1, {"catch"});
  ASSERT_TRUE(first.wait_for("ready", 1, seconds(20)) && second.wait_for("ready", 1, seconds(20)));
  second.signal(SIGTSTP);
  ASSERT_TRUE(second.wait_for_in_err("cannot be stopped", seconds(20)));
  second.signal(SIGTERM);
  ASSERT_TRUE(first.finish(seconds(20)) && second.finish(seconds(20)));
  EXPECT_EQ(first.exit_code(), 143);
}

TEST_F(NodesTest, KilledLauncherIsNamedAndEverythingEndsEverywhere) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    Command first = actor(0, 2, {"family"});
    Command second = actor(1, 1, {"family"});
    ASSERT_TRUE(first.wait_for("ready", 2, seconds(20)) &&
                second.wait_for("ready", 1, seconds(20)));
    (victim == 0 ? first : second).signal(SIGKILL);
    ASSERT_TRUE(first.finish(seconds(20)) && second.finish(seconds(20)));
    const Command& survivor = victim == 0 ? second : first;
    EXPECT_EQ(survivor.exit_code(), 1);
    EXPECT_THAT(survivor.err(), HasSubstr("lost node " + std::to_string(victim) + " ("));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
  }
}

TEST_F(NodesTest, KilledKeeperOrWorkerEndsEveryHostWithItsCode) {
  for (const bool keeper : {true, false}) {
    SCOPED_TRACE(keeper ? "keeper" : "worker");
    Command first = actor(0, 1, {"wait"});
    Command second = actor(1, 1, {"wait"});
    ASSERT_TRUE(first.wait_for("ready", 1, seconds(20)) &&
                second.wait_for("ready", 1, seconds(20)));
    const pid_t keeper_pid = children_of(second.pid()).at(0);
    ::kill(keeper ? keeper_pid : children_of(keeper_pid).at(0), SIGKILL);
    ASSERT_TRUE(first.finish(seconds(20)) && second.finish(seconds(20)));
    EXPECT_EQ(first.exit_code(), 137);
    EXPECT_EQ(second.exit_code(), 137);
    EXPECT_THAT(first.err(), HasSubstr(keeper ? "keeper process on node 1" : "rank 1 on node 1"));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
  }
}

// Its host is lost. If that ends the job, because it is node 0 or too few are left, it is named, and none lost before.
TEST_F(NodesTest, KilledKeeperOfAnElasticJobCostsItsHost) {
  const Words rules = {"--max-restarts", "10", "--min-workers", "2"};
  for (const std::size_t last : {0U, 3U}) {
    std::vector<Command> all;
    for (int rank = 0; rank < 4; ++rank) all.push_back(node(rank, 1, training(8), rules, 4));
    ASSERT_TRUE(all[0].wait_for(" of 4 in", 1, seconds(30))) << all[0].err();
    all[1].signal(SIGKILL);
    ASSERT_TRUE(all[0].wait_for("3 workers train from here on", 1, seconds(30))) << all[0].err();
    ::kill(children_of(all[2].pid()).at(0), SIGKILL);
    ASSERT_TRUE(all[2].finish(seconds(30)) && all[2].exit_code() == 137) << all[2].err();
    EXPECT_THAT(all[2].err(), HasSubstr("lockstep: the launcher's keeper process on node 2 ("));
    ASSERT_TRUE(all[0].wait_for("2 workers train from here on", 1, seconds(30))) << all[0].err();
    EXPECT_THAT(all[0].err(), AllOf(HasSubstr("its keeper"), Not(HasSubstr("out of place"))));
    ::kill(children_of(all[last].pid()).at(0), SIGKILL);
    ASSERT_TRUE(all[0].finish(seconds(30)) && all[3].finish(seconds(30)));
    EXPECT_EQ(all[0].exit_code(), last == 0 ? 137 : 1) << all[0].err();
    const char* cause = last == 0 ? "keeper process on node 0 (" : "lost node 3 (";
    EXPECT_THAT(lines_of(all[0].err()).back(), HasSubstr(cause));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
  }
}

TEST_F(NodesTest, StoppedLauncherIsTakenForALostHost) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    Command first = actor(0, 1, {"wait"});
    Command second = actor(1, 1, {"wait"});
    ASSERT_TRUE(first.wait_for("ready", 1, seconds(20)) &&
                second.wait_for("ready", 1, seconds(20)));
    Command& stopped = victim == 0 ? first : second;
    Command& other = victim == 0 ? second : first;
    const pid_t keeper = children_of(stopped.pid()).at(0);
    stopped.signal(SIGSTOP);
    ASSERT_TRUE(other.finish(seconds(20)));
    EXPECT_EQ(other.exit_code(), 1);
    EXPECT_THAT(other.err(), HasSubstr("lost node " + std::to_string(victim) + " ("));
    EXPECT_THAT(other.err(), HasSubstr("nothing was heard from it for 3 s"));
    // Nobody is left on its host who could end them.
    EXPECT_EQ(children_of(keeper).size(), 1U);
    stopped.signal(SIGCONT);
    ASSERT_TRUE(stopped.finish(seconds(20)));
    EXPECT_EQ(stopped.exit_code(), 1);
    EXPECT_THAT(stopped.err(), HasSubstr("lost node " + std::to_string(1 - victim) + " ("));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
  }
}

TEST_F(NodesTest, MissingProgramOfOneHostIsToldToAll) {
  for (const int lacking : {0, 1}) {
    SCOPED_TRACE(lacking);
    const auto program = [&](int rank) {
      return rank == lacking ? Words{folder_ + "/none/launcher_actor"}
                             : Words{ACTOR_BINARY, "wait"};
    };
    Command first = node(0, 1, program(0));
    Command second = node(1, 1, program(1));
    ASSERT_TRUE(first.finish(seconds(30)) && second.finish(seconds(30)));
    EXPECT_EQ(first.exit_code(), 127) << first.err();
    EXPECT_EQ(second.exit_code(), 127) << second.err();
    const Command& other = lacking == 0 ? second : first;
    EXPECT_THAT(other.err(), HasSubstr("node " + std::to_string(lacking) + " ("));
    EXPECT_THAT(other.err(), HasSubstr("none/launcher_actor"));
    EXPECT_EQ(lines_of(first.err()).size(), 1U) << first.err();
    EXPECT_EQ(lines_of(second.err()).size(), 1U) << second.err();
  }
}

TEST_F(NodesTest, AnotherSecretIsRefusedInOneLine) {
  write_secret(folder_ + "/other", "another secret of the right length");
  Command first = actor(0, 1, {"wait"});
  Command second = actor(1, 1, {"wait"}, {"--secret-file", folder_ + "/other"});
  ASSERT_TRUE(second.finish(seconds(20)));
  EXPECT_EQ(second.exit_code(), 2);
  EXPECT_THAT(second.err(),
              HasSubstr("has another secret; give every host the same --secret-file"));
  EXPECT_EQ(lines_of(second.err()).size(), 1U);
  // A stranger may come with a wrong secret as well: the job waits for the right one.
  Command right = actor(1, 1, {"exit", "1", "0"});
  ASSERT_TRUE(first.wait_for("ready", 1, seconds(20)));
}

TEST_F(NodesTest, NodeThatComesWithAnotherSecretIsNamedOnceAndInTheEnd) {
  write_secret(folder_ + "/other", "another secret of the right length");
  Command first = actor(0, 1, {"wait"}, {"--timeout", "10"});
  for (int knock = 0; knock < 3; ++knock) {
    Command second = actor(1, 1, {"wait"}, {"--secret-file", folder_ + "/other"});
    ASSERT_TRUE(second.finish(seconds(20)));
    EXPECT_EQ(second.exit_code(), 2);
  }
  ASSERT_TRUE(first.wait_for_in_err(
      "lockstep: somebody at 127.0.0.1 tried to join with another secret", seconds(20)));
  EXPECT_EQ(count(first.err(), "somebody"), 1) << first.err();
  ASSERT_TRUE(first.finish(seconds(20)));
  EXPECT_EQ(first.exit_code(), 1);
  const auto lines = lines_of(first.err());
  EXPECT_THAT(lines.back(), HasSubstr("node 1 did not come to tcp:127.0.0.1:"));
  EXPECT_THAT(lines.back(), HasSubstr("somebody at 127.0.0.1 tried to join with another secret"));
  EXPECT_EQ(count(first.err(), "secret"), 4) << first.err();  // twice "--secret-file"
}

TEST_F(NodesTest, NodeRankGivenTwiceEndsAllInOneLine) {
  Command first = actor(0, 1, {"wait"}, {}, 3);
  Command second = actor(1, 1, {"wait"}, {}, 3);
  Command third = actor(1, 1, {"wait"}, {}, 3);
  for (Command* command : {&first, &second, &third}) {
    ASSERT_TRUE(command->finish(seconds(30)));
    EXPECT_EQ(command->exit_code(), 2);
    EXPECT_THAT(command->err(), HasSubstr("--node-rank 1 was given twice"));
    EXPECT_EQ(lines_of(command->err()).size(), 1U) << command->err();
  }
}

TEST_F(NodesTest, DifferentNumbersOfNodesOrCommandsEndAllInOneLine) {
  for (const bool nodes : {true, false}) {
    Command first = actor(0, 1, {"wait"});
    Command second = nodes ? actor(1, 1, {"wait"}, {}, 3) : node(1, 1, {"/bin/sleep", "60"});
    for (Command* command : {&first, &second}) {
      ASSERT_TRUE(command->finish(seconds(30)));
      EXPECT_EQ(command->exit_code(), 2);
      EXPECT_THAT(command->err(), HasSubstr(nodes ? "--nodes 3" : "lockstep run sleep"));
      EXPECT_EQ(lines_of(command->err()).size(), 1U) << command->err();
    }
  }
}

TEST_F(NodesTest, SecondJobAtOneRendezvousIsTurnedAwayAndTheFirstGoesOn) {
  Command first = actor(0, 1, {"catch"});
  Command second = actor(1, 1, {"catch"});
  ASSERT_TRUE(first.wait_for("ready", 1, seconds(20)) && second.wait_for("ready", 1, seconds(20)));
  Command other_first = actor(0, 1, {"wait"});
  Command other_second = actor(1, 1, {"wait"});
  ASSERT_TRUE(other_first.finish(seconds(20)) && other_second.finish(seconds(20)));
  EXPECT_EQ(other_first.exit_code(), 2);
  EXPECT_THAT(other_first.err(), HasSubstr("Address already in use"));
  EXPECT_EQ(other_second.exit_code(), 2);
  EXPECT_THAT(other_second.err(), HasSubstr("choose another port in --rendezvous"));
  first.signal(SIGTERM);
  ASSERT_TRUE(first.finish(seconds(20)) && second.finish(seconds(20)));
  EXPECT_EQ(second.exit_code(), 143);
  EXPECT_EQ(count(second.out(), "caught 15"), 1);
}

TEST_F(NodesTest, HostsThatDoNotComeAreNamed) {
  Command first = actor(0, 1, {"wait"}, {"--timeout", "1"}, 3);
  Command second = actor(1, 1, {"wait"}, {"--timeout", "30"}, 3);
  ASSERT_TRUE(first.finish(seconds(20)) && second.finish(seconds(20)));
  EXPECT_EQ(first.exit_code(), 1);
  EXPECT_THAT(first.err(), HasSubstr("node 2 did not come to tcp:127.0.0.1:"));
  EXPECT_EQ(second.exit_code(), 1);
  EXPECT_THAT(second.err(), HasSubstr("node 2 did not come to tcp:127.0.0.1:"));
}

TEST_F(NodesTest, MissingNode0IsNamed) {
  Command second = actor(1, 1, {"wait"}, {"--timeout", "1"});
  ASSERT_TRUE(second.finish(seconds(20)));
  EXPECT_EQ(second.exit_code(), 1);
  EXPECT_THAT(second.err(), HasSubstr("could not meet node 0 at tcp:" + rendezvous_));
  EXPECT_THAT(second.err(), HasSubstr("nobody listens there"));
}

TEST_F(NodesTest, WrongOptionsAreOneLine) {
  const std::vector<std::pair<Words, const char*>> cases = {
      {{"--nodes", "0", "--node-rank", "0"}, "--nodes 0"},
      {{"--nodes", "2", "--node-rank", "2"}, "--node-rank 2 is not possible"},
      {{"--nodes", "2", "--node-rank", "0"}, "--rendezvous HOST:PORT"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", "here:1"}, "--secret-file FILE"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", "unix:x", "--secret-file", "y"},
       "one host only"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:1", "--secret-file",
        "/none"},
       "openssl rand"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", "0.0.0.0:2999", "--secret-file",
        secret_},
       "name one"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", std::string(10'000, 'x')},
       "has no port"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", std::string(10'000, 'x') + ":1"},
       "has a host of more than 253"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", "unix:" + std::string(10'000, 'x')},
       "name of 1 to 100 bytes"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", "::1"}, "write [::1]:PORT"},
      {{"--nodes", "2", "--node-rank", "0", "--rendezvous", "[::1]"}, "has no port"},
      {{"--wire", "none"}, "--wire none"}};
  for (const auto& [options, text] : cases) {
    Words words = {LOCKSTEP_BINARY, "run", "-n", "1"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", ACTOR_BINARY, "wait"});
    Command command(words);
    ASSERT_TRUE(command.finish(seconds(20))) << text;
    EXPECT_EQ(command.exit_code(), 2) << text;
    EXPECT_THAT(command.err(), HasSubstr(text));
    EXPECT_EQ(lines_of(command.err()).size(), 1U) << command.err();
    EXPECT_LT(command.err().size(), 300U);
  }
}

// Somebody is killed at one random instant, on any host.
TEST_F(NodesTest, KillingAnybodyAtAnyInstantLeavesNothingBehind) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const int rounds = kSlowBuild ? 4 : 24;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    Command first = actor(0, 2, {"family"}, {"--timeout", "1", "--grace", "0.2"});
    Command second = actor(1, 1, {"family"}, {"--timeout", "1", "--grace", "0.2"});
    ::usleep(static_cast<useconds_t>(random() % (kSlowBuild ? 300'000 : 50'000)));
    const auto all = processes_with(marker_);
    if (!all.empty()) ::kill(all[random() % all.size()], SIGKILL);
    // The death of a worker's own child or daemon ends nothing.
    first.signal(SIGTERM);
    ASSERT_TRUE(first.finish(seconds(20))) << round << first.err();
    ASSERT_TRUE(second.finish(seconds(20))) << round << second.err();
    EXPECT_NE(first.exit_code(), 0) << round;
    EXPECT_NE(second.exit_code(), 0) << round;
    EXPECT_THAT(left(seconds(10)), IsEmpty()) << round;
  }
}

}  // namespace
}  // namespace lockstep::testing
