// Hosts that join a job that runs, and jobs on several hosts whose number of workers changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "tests/launcher/nodes.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class JoiningHostsTest : public Nodes {
 protected:
  Command joins(int workers, const Words& program, const Words& options = {}) const {
    Words words = {LOCKSTEP_BINARY,         "run",           "--join", rendezvous_, "-n",
                   std::to_string(workers), "--secret-file", secret_};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    words.insert(words.end(), program.begin(), program.end());
    return Command(words, {marker_});
  }

  // Another command of the user on this host, to its end.
  Command ask(Words words) const {
    words.insert(words.begin(), LOCKSTEP_BINARY);
    Command command(words, {});
    EXPECT_TRUE(command.finish(seconds(30)));
    return command;
  }
  // Until a batch is done, the launcher refuses because it does not know of one.
  Command resize(const std::string& id, int workers) const {
    const Deadline deadline = seconds(30);
    while (true) {
      Command command = ask({"resize", id, std::to_string(workers)});
      if (command.err().find("a first batch") == std::string::npos || deadline.expired())
        return command;
    }
  }
  // Of the job whose program has the marker in its words.
  std::string id_of_job() const {
    for (const std::string& line : lines_of(ask({"jobs"}).out())) {
      if (line.find(marker_) != std::string::npos) return line.substr(0, line.find(' '));
    }
    return "";
  }
};

TEST_F(JoiningHostsTest, AHostJoinsAJobThatRunsAndItsWorkersAreNewcomers) {
  Command first = trains(0, 1, 8);
  Command second = trains(1, 1, 8);
  ASSERT_TRUE(first.wait_for(" of 2 in", 1, seconds(30))) << first.err();
  Command third = joins(2, training(8));
  ASSERT_TRUE(third.wait_for(" of 4 in", 2, seconds(30))) << first.err() << third.err();
  ASSERT_TRUE(first.wait_for("4 workers train from here on", 1, seconds(30))) << first.err();
  EXPECT_THAT(first.err(), HasSubstr("lockstep: node 2 ("));
  EXPECT_THAT(first.err(), HasSubstr(") joins, with 2 workers"));
  EXPECT_THAT(third.out(), AllOf(HasSubstr("[2] rank"), HasSubstr("[3] rank"))) << "its places";
  Command fourth = joins(1, training(8));
  ASSERT_TRUE(fourth.wait_for("[4] rank 4 of 5 in", 1, seconds(30))) << fourth.err();
  // A worker of a host that joined is replaced there.
  const pid_t keeper = children_of(third.pid()).at(0);
  ::kill(children_of(keeper).at(0), SIGKILL);
  ASSERT_TRUE(first.wait_for("5 workers train from here on", 2, seconds(30))) << first.err();
  first.signal(SIGTERM);
  for (Command* one : {&first, &second, &third, &fourth}) {
    ASSERT_TRUE(one->finish(seconds(30)));
    EXPECT_EQ(one->exit_code(), 128 + SIGTERM) << one->err();
  }
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(JoiningHostsTest, AJobOnTwoHostsIsGivenFewerWorkersAndMore) {
  const Words program = {"/bin/sh", "-c",
                         "exec " + quoted(JOIN_ACTOR_BINARY) + " train 4 # " + marker_};
  Command first = node(0, 1, program, {"--max-restarts", "10"});
  Command second = node(1, 2, program, {"--max-restarts", "10"});
  ASSERT_TRUE(first.wait_for(" of 3 in", 1, seconds(30))) << first.err() << second.err();
  const std::string id = id_of_job();
  EXPECT_EQ(resize(id, 2).exit_code(), 0);
  ASSERT_TRUE(first.wait_for("2 workers train from here on", 1, seconds(30))) << first.err();
  EXPECT_THAT(first.err(), HasSubstr("rank 2 has left: the job is to have fewer workers"));
  EXPECT_EQ(resize(id, 1).exit_code(), 0);
  ASSERT_TRUE(first.wait_for("1 worker trains from here on", 1, seconds(30))) << first.err();
  EXPECT_EQ(resize(id, 3).exit_code(), 0) << "of a host that has no worker now";
  ASSERT_TRUE(first.wait_for("3 workers train from here on", 1, seconds(30)))
      << first.err() << second.err();
  const std::string listed = ask({"jobs"}).out();
  EXPECT_THAT(listed.substr(listed.find(id)), AllOf(HasSubstr(" 3 "), HasSubstr(" 1:3 ")));
  EXPECT_THAT(resize(id, 4).err(), HasSubstr("it can have 1 to 3 workers"));
  const pid_t keeper = children_of(second.pid()).at(0);
  ::kill(children_of(keeper).at(1), SIGKILL);
  ASSERT_TRUE(first.wait_for("3 workers train from here on", 2, seconds(30))) << first.err();
  first.signal(SIGTERM);
  for (Command* one : {&first, &second}) {
    ASSERT_TRUE(one->finish(seconds(30)));
    EXPECT_EQ(one->exit_code(), 128 + SIGTERM) << one->err();
  }
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(JoiningHostsTest, AHostThatWasLostComesBack) {
  Command first = trains(0, 1, 3);
  std::vector<Command> lives;
  lives.push_back(trains(1, 2, 3));
  ASSERT_TRUE(first.wait_for(" of 3 in", 1, seconds(30))) << first.err();
  for (int time = 1; time <= 2; ++time) {
    lives.back().signal(SIGKILL);
    ASSERT_TRUE(lives.back().finish(seconds(30)));
    ASSERT_TRUE(first.wait_for("; 1 worker goes on", time, seconds(30))) << first.err();
    lives.push_back(joins(2, training(3)));
    Command& second = lives.back();
    ASSERT_TRUE(second.wait_for(" of 3 in", 2, seconds(30))) << first.err() << second.err();
    ASSERT_TRUE(first.wait_for("3 workers train from here on", time, seconds(30))) << first.err();
  }
  first.signal(SIGTERM);
  ASSERT_TRUE(first.finish(seconds(30)) && lives.back().finish(seconds(30)));
  EXPECT_EQ(lives.back().exit_code(), 128 + SIGTERM) << lives.back().err();
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(JoiningHostsTest, AHostThatDoesNotFitIsRefusedInOneLineAndTheJobGoesOn) {
  Command first = trains(0, 1, 3);
  Command second = trains(1, 1, 3);
  ASSERT_TRUE(first.wait_for(" of 2 in", 1, seconds(30))) << first.err();
  write_secret(folder_ + "/other", "another secret of enough bytes to be one");
  struct Case {
    Command command;
    const char* piece;
    int code;
  };
  std::vector<Case> cases;
  cases.push_back({joins(2, training(3)), "it has 3 shards: that many workers at most", 1});
  cases.push_back({joins(1, {"/bin/sleep", "9"}), "wants `lockstep run sleep with", 2});
  cases.push_back({joins(1, {"/no/such"}), "/no/such", 127});
  cases.push_back({joins(1, training(3), {"--faults", "kill@1:1:forward"}), "the faults", 2});
  cases.push_back(
      {joins(1, training(3), {"--nodes", "2", "--node-rank", "1"}), "leave them out", 2});
  cases.push_back({joins(1, training(3), {"--rendezvous", "a:1"}), "leave them out", 2});
  for (Case& one : cases) {
    ASSERT_TRUE(one.command.finish(seconds(30))) << one.piece;
    EXPECT_EQ(one.command.exit_code(), one.code) << one.command.err();
    EXPECT_EQ(count(one.command.err(), "\n"), 1) << one.command.err();
    EXPECT_THAT(one.command.err(), HasSubstr(one.piece));
  }
  Command fits = joins(1, training(3));
  ASSERT_TRUE(fits.wait_for(" of 3 in", 1, seconds(30))) << "it goes on" << first.err();
  ASSERT_TRUE(first.wait_for("3 workers train from here on", 1, seconds(30))) << first.err();
  EXPECT_EQ(count(first.err(), " joins, with"), 1) << first.err();
}

TEST_F(JoiningHostsTest, AJobWithFixedWorkersIsNotJoined) {
  Command first = node(0, 1, {JOIN_ACTOR_BINARY, "meet"});
  Command second = node(1, 1, {JOIN_ACTOR_BINARY, "meet"});
  ASSERT_TRUE(first.wait_for("ready", 1, seconds(30))) << first.err();
  Command third = joins(1, {JOIN_ACTOR_BINARY, "meet"});
  ASSERT_TRUE(third.finish(seconds(30)));
  EXPECT_EQ(third.exit_code(), 2) << third.err();
  EXPECT_THAT(third.err(), HasSubstr("with --max-restarts"));
}

TEST_F(JoiningHostsTest, AHostMayAskBeforeTheJobHasBegunAndWaits) {
  Command third = joins(1, training(8));
  Command first = trains(0, 1, 8);
  Command second = trains(1, 1, 8);
  ASSERT_TRUE(third.wait_for(" of 3 in", 1, seconds(30))) << first.err() << third.err();
}

TEST_F(JoiningHostsTest, AHostThatNobodyTakesInSaysWhy) {
  const Words wait = {ACTOR_BINARY, "wait"};
  Command first = node(0, 1, wait, {"--max-restarts", "10"});
  Command second = node(1, 1, wait, {"--max-restarts", "10"});
  ASSERT_TRUE(first.wait_for("ready", 1, seconds(30))) << first.err();
  Command third = joins(1, wait, {"--timeout", "2", "--step-timeout", "1"});
  ASSERT_TRUE(third.finish(seconds(30)));
  EXPECT_EQ(third.exit_code(), 1);
  EXPECT_THAT(third.err(), HasSubstr("did not take this host in: its hosts have not met, or"));
  EXPECT_THAT(first.err(), Not(HasSubstr(" joins, "))) << "it cannot be joined";
}

TEST_F(JoiningHostsTest, AHostThatDiesWhileItJoinsChangesNothing) {
  Command first = trains(0, 1, 8);
  Command second = trains(1, 1, 8);
  ASSERT_TRUE(first.wait_for(" of 2 in", 1, seconds(30))) << first.err();
  for (int time = 1; time <= 3; ++time) {
    Command third = joins(1, training(8));
    ASSERT_TRUE(first.wait_for(" joins, with 1 worker", time, seconds(30))) << first.err();
    third.signal(SIGKILL);  // its worker is starting
    ASSERT_TRUE(third.finish(seconds(30)));
    ASSERT_TRUE(first.wait_for(": its launcher ended without a word", time, seconds(30)))
        << first.err();
  }
  Command last = joins(1, training(8));
  ASSERT_TRUE(last.wait_for(" of 3 in", 1, seconds(30))) << first.err() << last.err();
  first.signal(SIGTERM);
  ASSERT_TRUE(first.finish(seconds(30)) && second.finish(seconds(30)) && last.finish(seconds(30)));
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

}  // namespace
}  // namespace lockstep::testing
