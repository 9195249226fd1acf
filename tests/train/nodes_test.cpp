// `lockstep train` on several hosts: two launchers on this machine, or a remote shell that runs the command here.
#include <sys/stat.h>

#include <csignal>

#include "control/launch/preparation.h"
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

class TrainNodes : public Train {
 protected:
  TrainNodes() {
    std::ofstream(path("secret")) << "0123456789abcdef0123456789abcdef";
    ::chmod(path("secret").c_str(), 0600);
    rendezvous_ = "127.0.0.1:" + std::to_string(control::free_port());
  }

  Command node(int rank, int workers, std::vector<std::string> options) const {
    options.insert(options.end(), {"--nodes", "2", "--node-rank", std::to_string(rank), "--workers",
                                   std::to_string(workers), "--rendezvous", rendezvous_,
                                   "--secret-file", path("secret")});
    return start(options);
  }

  // An elastic job on two hosts, of 1 and 2 workers. When the first says this, the launcher of the second gets the signal. The
  // first has trained to the end, and written two.json.
  struct Both {
    Command first;
    Command second;
  };
  Both without_second(std::vector<std::string> job, const std::string& when, int signal) const {
    job.insert(job.end(), {"--max-restarts", "9"});
    auto first_job = job;
    first_job.insert(first_job.end(), {"--report", path("two.json")});
    Both both{node(0, 1, first_job), node(1, 2, job)};
    if (!both.first.wait_for(when, 1, seconds(60))) {
      ADD_FAILURE() << "not said: " << when << "\n" << both.first.err();
      return both;
    }
    ::kill(both.second.pid(), signal);
    EXPECT_TRUE(both.first.finish(seconds(100)) && both.second.finish(seconds(100)));
    EXPECT_EQ(both.first.exit_code(), 0) << both.first.out() << both.first.err();
    EXPECT_THAT(processes_with(marker_), IsEmpty());
    return both;
  }

  // The hash of this job on one worker of one host.
  std::string hash_alone(std::vector<std::string> job) const {
    job.insert(job.end(), {"--report", path("one.json"), "--workers", "1"});
    EXPECT_EQ(finished(job).exit_code(), 0);
    return hash_in("one.json");
  }

  std::string hash_in(const std::string& report) const {
    std::ifstream file(path(report));
    if (!file) return "no " + report;
    return nlohmann::json::parse(file)["weights_sha256"];
  }

  std::string rendezvous_;
};

TEST_F(TrainNodes, SameBitsOnOneHostAndOnTwo) {
  const std::vector<std::string> job = {"--steps", "4", "--quiet"};
  auto first_job = job;
  first_job.insert(first_job.end(), {"--report", path("two.json")});
  Command first = node(0, 1, first_job);
  Command second = node(1, 2, job);
  ASSERT_TRUE(first.finish(seconds(100)) && second.finish(seconds(100)));
  EXPECT_EQ(first.exit_code(), 0) << first.err();
  EXPECT_EQ(second.exit_code(), 0) << second.err();
  EXPECT_EQ(second.out(), "");  // what is to be said comes from node 0
  EXPECT_EQ(hash_in("two.json"), hash_alone(job));
}

TEST_F(TrainNodes, WorkerThatIsToldToStopStopsEveryHostWith75) {
  const std::vector<std::string> job = {"--steps", "100000", "--checkpoint", path("run")};
  Command first = node(0, 1, job);
  Command second = node(1, 1, job);
  ASSERT_TRUE(first.wait_for("step 1/", 1, seconds(60)));
  const pid_t far = worker(1);
  ASSERT_GT(far, 0);
  ::kill(far, SIGTERM);
  ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
  EXPECT_EQ(first.exit_code(), 75) << first.err();
  EXPECT_EQ(second.exit_code(), 75) << second.err();
  EXPECT_THAT(checkpoints(), ::testing::Not(IsEmpty()));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

// A worker of the other host dies, then that host as a whole: its launcher and all that it has started.
TEST_F(TrainNodes, WorkersAndHostsThatDieChangeNoBit) {
  std::vector<std::string> job = {"--steps", "300", "--checkpoint", "none"};
  const std::string expected = hash_alone(job);
  job.insert(job.end(), {"--faults", "kill@20:2:update"});
  const Both both = without_second(job, "3 workers train from here on", SIGKILL);
  EXPECT_THAT(both.first.err(), HasSubstr("lost node 1"));
  EXPECT_THAT(both.first.err(), HasSubstr("1 worker goes on"));
  EXPECT_EQ(hash_in("two.json"), expected);
}

// Workers own slices of the weights while there are two hosts, though those of one host could share memory; and at the end one
// worker is left, who has all of them. The order explains it all.
TEST_F(TrainNodes, AsynchronousStepsOfTwoHostsAreReplayedOnOne) {
  const std::vector<std::string> job = {"--steps", "300",  "--staleness",  "2",
                                        "--round", "10",   "--shards",     "4",
                                        "--lr",    "0.01", "--checkpoint", "none"};
  auto recorded = job;
  recorded.insert(recorded.end(), {"--faults", "kill@20:2:small", "--order", path("order")});
  const Both both = without_second(recorded, "3 workers train from here on", SIGKILL);
  EXPECT_THAT(both.first.err(), HasSubstr("1 worker goes on"));
  auto replay = job;
  replay.insert(replay.end(), {"--replay", path("order")});
  EXPECT_EQ(hash_in("two.json"), hash_alone(replay));
}

// A scheduler wants the other host back: its workers leave between two batches, and no step is repeated.
TEST_F(TrainNodes, AHostThatIsToldToEndLeavesAndChangesNoBit) {
  const std::vector<std::string> job = {"--steps", "150"};
  const std::string expected = hash_alone(job);
  const Both both = without_second(job, "step 1/", SIGTERM);
  EXPECT_THAT(both.first.err(), HasSubstr("got SIGTERM and leaves"));
  EXPECT_THAT(both.first.err(), HasSubstr("has left; 1 worker goes on"));
  EXPECT_THAT(both.first.err(), ::testing::Not(HasSubstr("replacement")));
  EXPECT_EQ(both.second.exit_code(), 128 + SIGTERM);
  EXPECT_THAT(both.second.err(), HasSubstr("this host has left the job, which goes on"));
  EXPECT_EQ(hash_in("two.json"), expected);
}

// If the others would be too few, the job is told to end, as ever.
TEST_F(TrainNodes, AHostThatIsNeededCannotLeave) {
  const std::vector<std::string> job = {"--steps",       "100000", "--max-restarts", "9",
                                        "--min-workers", "2",      "--checkpoint",   path("run")};
  Command first = node(0, 1, job);
  Command second = node(1, 1, job);
  ASSERT_TRUE(first.wait_for("step 1/", 1, seconds(60))) << first.err();
  ::kill(second.pid(), SIGTERM);
  ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
  EXPECT_EQ(first.exit_code(), 128 + SIGTERM) << first.err();
  EXPECT_EQ(second.exit_code(), 128 + SIGTERM) << second.err();
  EXPECT_THAT(checkpoints(), ::testing::Not(IsEmpty()));
}

TEST_F(TrainNodes, AKilledKeeperCostsItsHostAndChangesNoBit) {
  const std::vector<std::string> job = {"--steps", "100"};
  const std::string expected = hash_alone(job);
  auto elastic = job;
  elastic.insert(elastic.end(), {"--max-restarts", "9", "--report", path("two.json"), "--faults",
                                 "slow@10:0:forward:1s"});
  Command first = node(0, 1, elastic);
  Command second = node(1, 2, elastic);
  ASSERT_TRUE(first.wait_for("fault slow@10", 1, seconds(60))) << first.err();
  ::kill(children_of(second.pid()).at(0), SIGKILL);
  ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
  EXPECT_EQ(first.exit_code(), 0) << first.out() << first.err();
  EXPECT_THAT(first.err(), HasSubstr("1 worker trains from here on"));
  EXPECT_EQ(second.exit_code(), 128 + SIGKILL) << second.err();
  EXPECT_EQ(hash_in("two.json"), expected);
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

// A launcher is stopped until the other takes it for lost, after 3 s; that of node 1 then needs 3 s more to notice. The
// worker of node 0 pauses meanwhile: all have steps to do together after that.
TEST_F(TrainNodes, ALauncherThatIsSilentForAWhileCostsAHostAndChangesNoBit) {
  const std::vector<std::string> job = {"--steps", "150"};
  const std::string expected = hash_alone(job);
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    auto elastic = job;
    elastic.insert(elastic.end(),
                   {"--max-restarts", "9", "--report", path("two.json"), "--faults",
                    victim == 0 ? "slow@10:0:forward:3500ms" : "slow@10:0:forward:7s"});
    Command first = node(0, 1, elastic);
    Command second = node(1, 2, elastic);
    ASSERT_TRUE(first.wait_for("fault slow@10", 1, seconds(60))) << first.err();
    Command& stopped = victim == 0 ? first : second;
    Command& other = victim == 0 ? second : first;
    stopped.signal(SIGSTOP);
    const std::string lost = "lost node " + std::to_string(victim) + " (";
    EXPECT_TRUE(other.wait_for_in_err(lost, seconds(30))) << other.err();
    stopped.signal(SIGCONT);
    ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
    EXPECT_EQ(first.exit_code(), 0) << first.out() << first.err();
    EXPECT_THAT(first.err(), HasSubstr("1 worker trains from here on"));
    EXPECT_EQ(second.exit_code(), 1) << second.err();
    EXPECT_THAT(second.err(), HasSubstr("lost node 0 ("));
    EXPECT_EQ(hash_in("two.json"), expected);
    EXPECT_THAT(processes_with(marker_), IsEmpty());
  }
}

// The workers of the second host leave, and come back.
TEST_F(TrainNodes, AResizeOfTwoHostsChangesNoBit) {
  const std::vector<std::string> job = {"--steps", "60"};
  const std::string expected = hash_alone(job);
  auto elastic = job;
  elastic.insert(elastic.end(), {"--max-restarts", "9"});
  auto first_job = elastic;
  // The pauses give the workers time to leave and to come.
  first_job.insert(first_job.end(), {"--report", path("two.json"), "--faults",
                                     "slow@10:0:forward:2s,slow@20:0:forward:4s"});
  elastic.insert(elastic.end(), {"--faults", first_job.back()});
  Command first = node(0, 1, first_job);
  Command second = node(1, 2, elastic);
  ASSERT_TRUE(first.wait_for("step 1/", 1, seconds(60))) << first.err();
  const auto ask = [&](std::vector<std::string> words) {
    words.insert(words.begin(), LOCKSTEP_BINARY);
    Command command(words, {});
    EXPECT_TRUE(command.finish(seconds(30)));
    return command.out() + command.err();
  };
  const std::string jobs = ask({"jobs"});
  const std::string before = jobs.substr(0, jobs.find(path("two.json")));
  const std::string id = before.substr(before.rfind('\n') + 1, 4);
  EXPECT_THAT(ask({"resize", id, "1"}), HasSubstr("is to have 1"));
  ASSERT_TRUE(first.wait_for("1 worker trains from here on", 1, seconds(60))) << first.err();
  EXPECT_THAT(ask({"resize", id, "3"}), HasSubstr("is to have 3"));
  ASSERT_TRUE(first.wait_for("3 workers train from here on", 1, seconds(60))) << first.err();
  ASSERT_TRUE(first.finish(seconds(100)) && second.finish(seconds(100)));
  EXPECT_EQ(first.exit_code(), 0) << first.err();
  EXPECT_EQ(second.exit_code(), 0) << second.err();
  EXPECT_EQ(hash_in("two.json"), expected);
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

// `lockstep run`, with the program of `lockstep train` as its workers'.
TEST_F(TrainNodes, AHostThatJoinsChangesNoBit) {
  const std::vector<std::string> job = {
      (fs::path(LOCKSTEP_BINARY).parent_path() / "lockstep-train").string(),
      "--model",
      "cnn",
      "--data",
      "synthetic",
      "--global-batch",
      "8",
      "--steps",
      "60",
      "--checkpoint",
      "none"};
  const auto run = [&](std::vector<std::string> words, const std::string& report) {
    words.insert(words.begin(), {LOCKSTEP_BINARY, "run"});
    words.emplace_back("--");
    words.insert(words.end(), job.begin(), job.end());
    if (!report.empty()) words.insert(words.end(), {"--report", path(report)});
    return Command(words, {marker_});
  };
  Command alone = run({"-n", "1"}, "one.json");
  ASSERT_TRUE(alone.finish(seconds(100)));
  const auto node = [&](std::vector<std::string> words, const std::string& report) {
    words.insert(words.end(), {"--secret-file", path("secret"), "-n", "1"});
    return run(words, report);
  };
  const std::vector<std::string> meet = {"--nodes",      "2",         "--max-restarts", "9",
                                         "--rendezvous", rendezvous_, "--node-rank"};
  auto first_words = meet;
  // The pause gives the host time to come.
  first_words.insert(first_words.end(), {"0", "--faults", "slow@10:0:forward:2s"});
  auto second_words = meet;
  second_words.emplace_back("1");
  Command first = node(first_words, "many.json");
  Command second = node(second_words, "");
  ASSERT_TRUE(first.wait_for("step 1/", 1, seconds(60))) << first.err();
  Command third = node({"--join", rendezvous_}, "");
  ASSERT_TRUE(first.wait_for("3 workers train from here on", 1, seconds(60))) << first.err();
  for (Command* one : {&first, &second, &third}) {
    ASSERT_TRUE(one->finish(seconds(100)));
    EXPECT_EQ(one->exit_code(), 0) << one->err();
  }
  EXPECT_EQ(hash_in("many.json"), hash_in("one.json"));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

// One that was started alone, and with one worker only, but says where others can find it.
TEST_F(TrainNodes, AHostJoinsAJobThatBeganOnOneHost) {
  const std::vector<std::string> job = {"--steps", "60"};
  const std::string expected = hash_alone(job);
  const std::vector<std::string> here = {
      "--secret-file", path("secret"), "--max-restarts", "9", "--workers", "1"};
  auto first_words = job;
  first_words.insert(first_words.end(), here.begin(), here.end());
  // The pause gives the host time to come.
  first_words.insert(first_words.end(), {"--rendezvous", rendezvous_, "--report", path("two.json"),
                                         "--faults", "slow@10:0:forward:3s"});
  Command first = start(first_words);
  ASSERT_TRUE(first.wait_for("step 1/", 1, seconds(60))) << first.err();
  Command second({LOCKSTEP_BINARY, "train", "--join", rendezvous_, "--secret-file", path("secret"),
                  "--workers", "1"},
                 {marker_});
  ASSERT_TRUE(first.wait_for("2 workers train from here on", 1, seconds(60))) << first.err();
  ASSERT_TRUE(first.finish(seconds(100)) && second.finish(seconds(100)));
  EXPECT_EQ(first.exit_code(), 0) << first.err();
  EXPECT_EQ(second.exit_code(), 0) << second.err();
  EXPECT_EQ(hash_in("two.json"), expected);
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(TrainNodes, AHostThatJoinsTakesAllOptionsFromNode0) {
  const std::vector<std::string> job = {"--steps", "40", "--max-restarts", "9"};
  auto first_job = job;
  first_job.insert(first_job.end(), {"--faults", "slow@10:0:forward:2s"});
  Command first = node(0, 1, first_job);
  Command second = node(1, 1, job);
  ASSERT_TRUE(first.wait_for("step 1/", 1, seconds(60))) << first.err();
  const std::vector<std::string> join = {LOCKSTEP_BINARY, "train",        "--join",   rendezvous_,
                                         "--secret-file", path("secret"), "--workers"};
  auto many = join;
  many.emplace_back("7");
  Command too_many(many, {marker_});
  ASSERT_TRUE(too_many.finish(seconds(60)));
  EXPECT_EQ(too_many.exit_code(), 1) << too_many.err();
  EXPECT_THAT(too_many.err(), HasSubstr("it has 8 shards: that many workers at most"));
  auto one = join;
  one.emplace_back("1");
  Command third(one, {marker_});
  ASSERT_TRUE(first.wait_for("3 workers train from here on", 1, seconds(60))) << first.err();
  for (Command* each : {&first, &second, &third}) {
    ASSERT_TRUE(each->finish(seconds(100)));
    EXPECT_EQ(each->exit_code(), 0) << each->out() << each->err();
  }
}

TEST_F(TrainNodes, TooManyWorkersOnAllHostsTogetherAreRefusedEverywhere) {
  Command first = node(0, 5, {"--steps", "4"});
  Command second = node(1, 5, {"--steps", "4"});
  ASSERT_TRUE(first.finish(seconds(60)) && second.finish(seconds(60)));
  expect_refusal(first, "8 shards cannot be hosted by 10 workers", 2);
  expect_refusal(second, "8 shards cannot be hosted by 10 workers", 2);
}

class TrainHosts : public TrainNodes {
 protected:
  // A remote shell that runs the command here, and writes its process into a file with the name of the host.
  TrainHosts()
      : shell_(fs::temp_directory_path() / ("lockstep-shell-" + std::to_string(::getpid()))) {
    std::ofstream(path("shell")) << "#!/bin/sh\necho $$ > '" << path("")
                                 << "'$1\nexec sh -c \"$2\"\n";
    ::chmod(path("shell").c_str(), 0755);
    fs::create_symlink(path("shell"), shell_);  // the words of --ssh are split at spaces
  }
  ~TrainHosts() override { fs::remove(shell_); }

  Command on_two_hosts(const std::vector<std::string>& options) const {
    std::vector<std::string> words = {
        LOCKSTEP_BINARY, "train",     "--model",        "cnn",
        "--data",        "synthetic", "--hosts",        "127.0.0.1:1,second:1",
        "--ssh",         shell_,      "--global-batch", "8"};
    words.insert(words.end(), options.begin(), options.end());
    return Command(words, {marker_});
  }

  fs::path shell_;
};

TEST_F(TrainHosts, AKilledHostCostsNothingElse) {
  const std::string expected = hash_alone({"--steps", "150", "--global-batch", "8"});
  Command command = on_two_hosts({"--steps", "150", "--max-restarts", "9", "--checkpoint", "none",
                                  "--report", path("two.json")});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60))) << command.err();
  pid_t launcher = 0;
  std::ifstream(path("second")) >> launcher;
  ASSERT_GT(launcher, 0);
  ::kill(launcher, SIGKILL);
  ASSERT_TRUE(command.finish(seconds(100)));
  EXPECT_EQ(command.exit_code(), 0) << command.out() << command.err();
  EXPECT_THAT(command.err(), HasSubstr("lost node 1"));
  EXPECT_EQ(hash_in("two.json"), expected);
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(TrainHosts, AreStartedFromHere) {
  Command command = on_two_hosts({"--steps", "4", "--checkpoint", path("run")});
  ASSERT_TRUE(command.finish(seconds(100)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_EQ(count(command.out(), "Trained after 4 steps"), 1) << command.out();
  EXPECT_THAT(checkpoints(), ::testing::Not(IsEmpty()));
}

}  // namespace
}  // namespace lockstep::testing
