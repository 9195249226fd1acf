// What is left when everything is killed at one instant, and what SIGTERM leaves: a checkpoint from which the job goes on to
// the bits of the undisturbed run.
#include <csignal>

#include "tests/support/hosts.h"
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::MatchesRegex;
using ::testing::Not;

class Kills : public Train {
 protected:
  std::vector<std::string> in_run(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--checkpoint", path("run")});
    return more;
  }

  // Launcher, keeper, workers: all that are there.
  void kill_all() const {
    for (const pid_t pid : processes_with(marker_)) ::kill(pid, SIGKILL);
    for (const Deadline deadline = seconds(20);
         !processes_with(marker_).empty() && !deadline.expired();)
      ::usleep(1000);
    ASSERT_THAT(processes_with(marker_), IsEmpty());
  }

  // Of the newest checkpoint; 0: there is none.
  int newest_step() const {
    const auto all = checkpoints();
    return all.empty() ? 0 : std::stoi(all.front().substr(all.front().rfind('-') + 1));
  }
  template <typename Condition>
  static bool await(const Condition& condition) {
    for (const Deadline deadline = seconds(60); !deadline.expired(); ::usleep(1000)) {
      if (condition()) return true;
    }
    return false;
  }
  int lines_in(const std::string& name) const {
    std::ifstream file(path(name));
    return static_cast<int>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  }

  // Goes on for some steps, and has the weights that an undisturbed run has there. Nothing but checkpoints is left.
  void expect_goes_on(int first_step) const {
    const std::string steps = std::to_string(first_step + 3);
    const auto resumed = report_of(in_run({"--steps", steps, "--resume"}));
    EXPECT_EQ(resumed["first_step"], first_step);
    EXPECT_EQ(resumed["weights_sha256"], report_of({"--steps", steps})["weights_sha256"]);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path("run")))
      names.push_back(entry.path().filename());
    EXPECT_THAT(names, SizeIs(2));
    EXPECT_THAT(names, Each(MatchesRegex("checkpoint-[0-9]+.safetensors")));
  }
};

TEST_F(Kills, OfEverythingAtOnceLoseAtMostTheInterval) {
  constexpr int kEvery = 5;
  Command command = start(in_run({"--steps", "100000", "--checkpoint-every", std::to_string(kEvery),
                                  "--hashes", path("hashes"), "--max-restarts", "3"}));
  ASSERT_TRUE(await([&] { return newest_step() >= 2 * kEvery; })) << command.err();
  kill_all();
  const int done = lines_in("hashes") - 1;
  // A checkpoint whose write was under way is lost, too, and the next one was not begun before.
  EXPECT_LE(done - newest_step(), 2 * kEvery);
  expect_goes_on(newest_step());
}

// The memory that workers leave goes with the keeper; the checkpoint does not.
TEST_F(Kills, OfTheKeeperLetTheJobBeginAgainFromItsCheckpoint) {
  const std::string expected = report_of({"--steps", "60"})["weights_sha256"];
  Command command =
      start(in_run({"--steps", "60", "--checkpoint-every", "5", "--max-restarts", "3", "--faults",
                    "slow@20:0:forward:3s", "--report", path("report.json")}));
  ASSERT_TRUE(await([&] { return newest_step() >= 15; })) << command.err();
  const auto keeper = children_of(command.pid());
  ASSERT_THAT(keeper, SizeIs(1));
  ::kill(keeper.front(), SIGKILL);
  EXPECT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("the job begins again, from the checkpoint"));
  std::ifstream file(path("report.json"));
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["weights_sha256"], expected);
  EXPECT_GE(report["first_step"], 15);
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(Kills, WhileACheckpointIsWrittenLeaveTheOneBefore) {
  Command command({LOCKSTEP_BINARY, "train", "--model", "cnn", "--data", "synthetic", "--workers",
                   "2", "--global-batch", "8", "--steps", "100000", "--checkpoint-every", "4",
                   "--checkpoint", path("run")},
                  {marker_, "LOCKSTEP_FAULTS=stop@8:0:file"});
  ASSERT_TRUE(await([&] {
    const pid_t leader = worker(0);
    std::ifstream file("/proc/" + std::to_string(leader) + "/stat");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return text.find(") T ") != std::string::npos;
  })) << command.err();
  EXPECT_EQ(newest_step(), 4);
  // As it is on file systems without files that have no name.
  std::ofstream(path("run/.checkpoint-000000008.safetensors.lockstep-tmp-1")) << "half";
  kill_all();
  EXPECT_EQ(newest_step(), 4);
  expect_goes_on(4);
}

class OwnLoop : public Kills {
 protected:
  std::string said_after(const std::string& directory, const std::string& steps) const {
    Command command({LOCKSTEP_BINARY, "run", "-n", "2", "--", OWN_LOOP_BINARY, directory, steps},
                    {marker_});
    EXPECT_TRUE(command.finish(seconds(60)));
    EXPECT_EQ(command.exit_code(), 0) << command.err();
    return lines_of(command.out()).back();
  }

  // On 3 workers through these faults, without the number of the leader.
  std::string said_through(const std::string& faults, const std::vector<std::string>& program,
                           const std::string& engine = "shm") {
    fs::remove_all(path("run"));
    std::vector<std::string> words = {LOCKSTEP_BINARY,  "run", "-n",       "3",
                                      "--max-restarts", "20",  "--engine", engine};
    if (!faults.empty()) words.insert(words.end(), {"--faults", faults});
    words.insert(words.end(), {"--", OWN_LOOP_BINARY, path("run")});
    words.insert(words.end(), program.begin(), program.end());
    Command command(words, {marker_});
    EXPECT_TRUE(command.finish(seconds(100)));
    EXPECT_EQ(command.exit_code(), 0) << command.out() << command.err();
    err_ = command.err();
    const std::string last = lines_of(command.out()).back();
    return last.substr(last.find("done after"));
  }

  std::string err_;
};

TEST_F(OwnLoop, ThatAsksForEveryLossGoesOnThroughFaults) {
  const std::string expected = said_through("", {"4000", "rich"});
  for (const std::string engine : {"shm", "tcp"}) {
    if (engine == "tcp" && !full_tests()) continue;
    EXPECT_EQ(said_through("kill@20:1:commit,kill@40:0:numbers,kill@2500:2:update",
                           {"4000", "rich"}, engine),
              expected);
    EXPECT_THAT(err_, HasSubstr("3 workers train from here on")) << "a newcomer";
    EXPECT_THAT(err_, Not(HasSubstr("begin again")));
  }
}

// The program begins again in its first loop. Memory of the second one is not taken over there: the checkpoint counts.
TEST_F(OwnLoop, OfTwoGoesOnIfAllWorkersDieInEither) {
  const std::string expected = said_through("", {"40", "two"});
  EXPECT_EQ(said_through(all_at(10, "torn"), {"40", "two"}), expected);
  EXPECT_THAT(err_, HasSubstr("goes on after step 10, from the memory"));
  for (const char* where : {"forward", "torn"}) {
    EXPECT_EQ(said_through(all_at(30, where), {"40", "two"}), expected) << where;
    EXPECT_THAT(err_, HasSubstr("goes on from the checkpoint of step 20")) << where;
  }
}

// The first loop would have room for the steps of the second.
TEST_F(OwnLoop, ThatWasLeftTakesNoMemoryOfTheNextOne) {
  const std::string expected = said_through("", {"40", "broken"});
  EXPECT_EQ(said_through(all_at(30, "torn"), {"40", "broken"}), expected);
  EXPECT_THAT(err_, Not(HasSubstr("from the memory of")));
}

// Nobody waits for a backup. So the others may have ended the round when they hear of a death, and then no task is left to report
// anything.
TEST_F(OwnLoop, WithBackupsKeepsItsMetricsWhenAWorkerDies) {
  std::string faults;
  for (int step = 1; step < 40; ++step)
    if (step % 10 != 0) faults += fmt::format("kill@{}:1:backward,", step);
  said_through(faults + "kill@40:1:forward", {"50", "backups"});
  EXPECT_THAT(err_, HasSubstr("rank 1 was killed by SIGKILL"));
}

// A newcomer would begin with the first loop.
TEST_F(OwnLoop, ThatIsNotTheFirstIsJoinedByNobody) {
  const std::string expected = said_through("", {"40", "two"});
  EXPECT_EQ(said_through("kill@30:1:update", {"40", "two"}), expected);
  EXPECT_THAT(err_, HasSubstr("rank 1 was killed by SIGKILL; 2 workers go on without it: nobody "
                              "can join a later loop of a program"));
}

TEST_F(OwnLoop, IsNotDoneIfItsLeaderDiesBehindIt) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "3", "--max-restarts", "5", "--", OWN_LOOP_BINARY,
                   path("run"), "20", "late"},
                  {marker_});
  ASSERT_TRUE(command.wait_for("[0] behind", 1, seconds(60))) << command.out() << command.err();
  for (const pid_t pid : processes_with(marker_)) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    const std::string environment(std::istreambuf_iterator<char>(file), {});
    if (environment.find(std::string("\0RANK=0", 7)) != std::string::npos) ::kill(pid, SIGKILL);
  }
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 128 + SIGKILL) << command.err();
}

// It would throw again.
TEST_F(OwnLoop, ThatThrowsBadInputIsNotStartedAgain) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "3", "--max-restarts", "5", "--", OWN_LOOP_BINARY,
                   path("run"), "20", "wrong"},
                  {marker_});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 1) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("it is wrong"));
  EXPECT_THAT(command.err(), Not(HasSubstr("replacement")));
}

TEST_F(OwnLoop, StopsWithACheckpointOnSigterm) {
  Command command(
      {LOCKSTEP_BINARY, "run", "-n", "2", "--", OWN_LOOP_BINARY, path("run"), "100000000"},
      {marker_});
  ASSERT_TRUE(command.wait_for("step 64", 1, seconds(60)));
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 128 + SIGTERM) << command.err();
  const int step = newest_step();
  EXPECT_GT(step, 64);
  EXPECT_THAT(command.out(), HasSubstr("stopped after " + std::to_string(step) + ", sha256"));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
  const std::string end = std::to_string(step + 10);
  EXPECT_EQ(said_after(path("run"), end), said_after(path("undisturbed"), end));
}

}  // namespace
}  // namespace lockstep::testing
