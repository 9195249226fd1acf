// Workers that die are started again, and the job goes on. The workers here are scripts that never meet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ReplacementTest : public ::testing::Test {
 protected:
  ReplacementTest() {
    char path[] = "/tmp/lockstep-replacement-XXXXXX";
    folder_ = ::mkdtemp(path);
  }
  ~ReplacementTest() override { std::filesystem::remove_all(folder_); }

  // Workers of which each runs `script`. In it, $N says how often this worker has been started.
  Command run_script(int workers, const std::string& script, std::vector<std::string> options,
                     std::vector<std::string> variables = {}) const {
    std::vector<std::string> arguments = {LOCKSTEP_BINARY, "run", "-n", std::to_string(workers)};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const std::string count =
        "echo start >>" + folder_ + "/$RANK; N=$(grep -c . " + folder_ + "/$RANK); ";
    arguments.insert(arguments.end(), {"--", "/bin/sh", "-c", count + script});
    return Command(std::move(arguments), std::move(variables));
  }

  std::string folder_;
};

TEST_F(ReplacementTest, AKilledWorkerIsStartedAgainAndTheJobSucceeds) {
  Command command = run_script(2,
                               "if [ $RANK = 1 ] && [ $N -le 2 ]; then printf half; kill -9 $$; fi;"
                               " echo start $N",
                               {"--max-restarts", "3"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  const auto lines = lines_of(command.out());
  EXPECT_THAT(lines, Contains("[0] start 1"));
  EXPECT_THAT(lines, Contains("[1] start 3"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[1] half"), 2) << command.out();
  EXPECT_THAT(command.err(), HasSubstr("lockstep: rank 1 was killed by SIGKILL; "));
  EXPECT_THAT(command.err(), HasSubstr("a replacement starts"));
  EXPECT_THAT(lines_of(command.err()), Contains("lockstep: 2 workers left and were replaced"));
}

TEST_F(ReplacementTest, AProgramThatAlwaysCrashesEndsWithItsOwnMessage) {
  Command command = run_script(2, "echo start $N; kill -SEGV $$", {"--max-restarts", "1"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 128 + SIGSEGV);
  EXPECT_EQ(count(command.out(), "start "), 3) << command.out();
  EXPECT_THAT(command.err(), HasSubstr("failed first: it was killed by SIGSEGV"));
}

// A report says what happened also if the job has failed. These workers never meet, so no generation follows.
TEST_F(ReplacementTest, TheReportListsWhatHappened) {
  const std::string path = folder_ + "/report";
  Command command =
      run_script(2, "[ $RANK$N = 11 ] && kill -9 $$; [ $RANK$N = 12 ] && exit 7; exec sleep 60",
                 {"--max-restarts", "5", "--report", path});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 7);
  std::ifstream file(path);
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report.at("workers"), 2);
  EXPECT_EQ(report.at("exit_code"), 7);
  const auto& events = report.at("events");
  ASSERT_EQ(events.size(), 2U) << events;
  EXPECT_EQ(events[0].at("what"), "killed");
  EXPECT_EQ(events[0].at("worker"), 1);
  EXPECT_EQ(events[0].at("signal"), "SIGKILL");
  EXPECT_EQ(events[1].at("what"), "ended");
  EXPECT_EQ(events[1].at("worker"), 1);
  EXPECT_GT(events[1].at("at_s"), events[0].at("at_s"));
  for (const auto& event : events) {
    EXPECT_TRUE(event.at("generation").is_null());
    EXPECT_TRUE(event.at("formed_ms").is_null());
  }
}

TEST_F(ReplacementTest, AReportThatCannotBeWrittenIsRefusedAtTheStart) {
  for (const std::string& path : {folder_ + "/none/report", folder_, std::string("-")}) {
    Command command = run_script(1, "echo began", {"--report", path});
    ASSERT_TRUE(command.finish(seconds(20)));
    EXPECT_EQ(command.exit_code(), 2) << path;
    EXPECT_THAT(command.err(), HasSubstr("--report " + path));
    EXPECT_EQ(command.out(), "");
  }
}

TEST_F(ReplacementTest, AnExitCodeEndsTheJob) {
  Command command =
      run_script(2, "[ $RANK = 1 ] && exit 7; exec sleep 60", {"--max-restarts", "5"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 7);
  EXPECT_THAT(command.err(), Not(HasSubstr("replacement")));
}

TEST_F(ReplacementTest, TooFewWorkersEndTheJob) {
  Command command = run_script(3, "[ $RANK = 1 ] && kill -9 $$; exec sleep 60",
                               {"--max-restarts", "0", "--min-workers", "3"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 137);
  EXPECT_THAT(command.err(), HasSubstr("rank 1 (pid "));
  EXPECT_THAT(command.err(), Not(HasSubstr("go on")));
}

TEST_F(ReplacementTest, CtrlCWhileARestartWaitsEndsTheJob) {
  const std::string marker = make_marker();
  Command command = run_script(1, "kill -9 $$", {"--max-restarts", "100"}, {marker});
  ASSERT_TRUE(command.wait_for("a replacement starts in", 1, seconds(20)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 130);
  EXPECT_THAT(processes_with(marker), IsEmpty());
}

TEST_F(ReplacementTest, AKilledLauncherLeavesNoReplacementBehind) {
  const std::string marker = make_marker();
  Command command = run_script(
      2, "[ $RANK = 1 ] && [ $N = 1 ] && kill -9 $$; exec " + quoted(ACTOR_BINARY) + " wait",
      {"--max-restarts", "3"}, {marker});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  command.signal(SIGKILL);
  ASSERT_TRUE(command.finish(seconds(20)));
  const Deadline deadline = seconds(20);
  while (!processes_with(marker).empty()) ASSERT_FALSE(deadline.expired());
}

// The script is killed; the program that it has started must not run beside the replacement.
TEST_F(ReplacementTest, NothingOfAKilledWorkerRunsOn) {
  const std::string marker = make_marker();
  Command command = run_script(1,
                               "[ $N = 2 ] && echo second && exec " + quoted(ACTOR_BINARY) +
                                   " wait; " + quoted(ACTOR_BINARY) + " wait & kill -9 $$",
                               {"--max-restarts", "3"}, {marker});
  ASSERT_TRUE(command.wait_for("second", 1, seconds(20)));
  const Deadline deadline = seconds(20);
  while (processes_with(marker).size() != 3) {  // launcher, keeper, replacement
    ASSERT_FALSE(deadline.expired()) << processes_with(marker).size();
  }
}

TEST_F(ReplacementTest, AReplacementInheritsWhatTheFirstOneHad) {
  Command command = run_script(
      1, "exec </dev/null; [ $N = 1 ] && kill -9 $$; exec " + quoted(ACTOR_BINARY) + " descriptors",
      {"--max-restarts", "1"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_EQ(count(command.out(), "fd "), 7) << "streams, secret, losses, estate, news:\n"
                                            << command.out();
  EXPECT_THAT(command.out(), HasSubstr("lockstep-news"));
}

TEST_F(ReplacementTest, WorkersAreToldThatTheyMayLeave) {
  Command command = run_actor(1, {"env", "LOCKSTEP_ELASTIC", "TORCHELASTIC_MAX_RESTARTS"},
                              {"--max-restarts", "4"}, {"LOCKSTEP_ELASTIC=0"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_THAT(lines_of(command.out()), Contains("[0] LOCKSTEP_ELASTIC=1"));
  EXPECT_THAT(lines_of(command.out()), Contains("[0] TORCHELASTIC_MAX_RESTARTS=4"));
}

TEST_F(ReplacementTest, QuietJobsSayNothingOfIt) {
  Command command =
      run_script(1, "[ $N = 1 ] && kill -9 $$; exit 0", {"--max-restarts", "1", "-q"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_EQ(command.err(), "");
}

// The workers pass forward and backward of steps 0 to 9.
class FaultListTest : public ::testing::Test {
 protected:
  static Command run(const std::vector<std::string>& options,
                     const std::vector<std::string>& variables = {}) {
    std::vector<std::string> words = {LOCKSTEP_BINARY, "run", "-n", "2"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", JOIN_ACTOR_BINARY, "faults", "10"});
    Command command(words, variables);
    EXPECT_TRUE(command.finish(seconds(30)));
    return command;
  }
};

TEST_F(FaultListTest, ThoseThatNeverStruckAreNamedAtTheEnd) {
  const std::string list =
      "slow@2:1:forward:1ms,kill@900:0:forward,slow@9:0:backward:1ms,stop@3:1:update";
  const std::string line =
      "lockstep: 2 of 4 faults never struck: kill@900:0:forward, stop@3:1:update; no worker";
  Command given = run({"--faults", list});
  EXPECT_EQ(given.exit_code(), 0) << given.err();
  EXPECT_THAT(given.err(), HasSubstr(line));
  EXPECT_THAT(given.err(), HasSubstr("[1] lockstep: fault slow@2:1:forward:1ms"));
  EXPECT_THAT(run({}, {"LOCKSTEP_FAULTS=" + list}).err(), HasSubstr(line)) << "exported";
  EXPECT_THAT(run({"--env", "LOCKSTEP_FAULTS=" + list}).err(), HasSubstr(line));
}

TEST_F(FaultListTest, NothingIsSaidIfAllStruckOrTheJobWasCutShort) {
  EXPECT_THAT(run({"--faults", "slow@2:1:forward:1ms,slow=1ms:1/h"}).err(),
              Not(HasSubstr("never struck")));
  Command dead = run({"--faults", "kill@2:1:forward,kill@5:1:forward"});
  EXPECT_EQ(dead.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(dead.err(), Not(HasSubstr("never struck")));
}

TEST_F(FaultListTest, AWorkerThatAResizeMayBringIsAllowedAndNamedIfItNeverCame) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "1:1000", "--faults", "kill@0:999:forward", "--",
                   JOIN_ACTOR_BINARY, "faults", "1"});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("1 of 1 fault never struck: kill@0:999:forward"));
}

}  // namespace
}  // namespace lockstep::testing
