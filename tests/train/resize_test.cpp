// A job whose number of workers is changed while it trains ends with the weights of the undisturbed run.
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

class Resize : public Train {
 protected:
  std::vector<std::string> job(const std::string& workers) const {
    return {"--workers", workers, "--shards", "4",
            "--steps",   "600",   "--report", path("report.json")};
  }
  std::string hash() const {
    std::ifstream file(path("report.json"));
    return nlohmann::json::parse(file).at("weights_sha256");
  }
  // When the job has ended a batch.
  static void resize(const std::string& id, const std::string& workers) {
    const Deadline deadline = seconds(60);
    while (!deadline.expired()) {
      Command command({LOCKSTEP_BINARY, "resize", id, workers});
      ASSERT_TRUE(command.finish(seconds(30)));
      if (command.exit_code() == 0) return;
      ASSERT_THAT(command.err(), HasSubstr("a first batch"));
    }
  }
};

TEST_F(Resize, ChangesNoBit) {
  Command undisturbed = finished(job("1"));
  ASSERT_EQ(undisturbed.exit_code(), 0) << undisturbed.err();
  const std::string expected = hash();
  Command command = start(job("1:3"));
  ASSERT_TRUE(command.wait_for("changes that", 1, seconds(60))) << command.err();
  const std::string id = command.err().substr(command.err().find("lockstep: job ") + 14, 4);
  resize(id, "1");  // with how many it begins depends on the cores
  ASSERT_TRUE(command.wait_for("1 worker trains from here on", 1, seconds(60)))
      << command.out() << command.err();
  resize(id, "3");
  ASSERT_TRUE(command.wait_for("3 workers train from here on", 1, seconds(60)))
      << command.out() << command.err();
  resize(id, "2");
  ASSERT_TRUE(command.wait_for("2 workers train from here on", 1, seconds(60)))
      << command.out() << command.err();
  ASSERT_TRUE(command.finish(seconds(100)));
  EXPECT_EQ(command.exit_code(), 0) << command.out() << command.err();
  EXPECT_EQ(hash(), expected);
  EXPECT_THAT(command.err(), ::testing::Not(HasSubstr("replaced"))) << "nobody was lost";
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(Resize, LimitsThatCannotBeAreRefused) {
  expect_refusal(finished({"--workers", "3:1"}), "did you mean 1:3?", 2);
  expect_refusal(finished({"--workers", "1:9", "--shards", "8"}), "use at most 8", 2);
  expect_refusal(finished({"--workers", "1:2", "--accumulate", "2"}), "give --shards", 2);
  expect_refusal(finished({"--workers", "1:2", "--min-workers", "1"}), "leave out --min-workers",
                 2);
}

TEST_F(Resize, AStoppedJobWritesACheckpoint) {
  Command command = start(
      {"--workers", "1:2", "--shards", "4", "--steps", "100000", "--checkpoint", path("run")});
  ASSERT_TRUE(command.wait_for("changes that", 1, seconds(60))) << command.err();
  const std::string id = command.err().substr(command.err().find("lockstep: job ") + 14, 4);
  resize(id, "2");
  Command stop({LOCKSTEP_BINARY, "stop", id});
  ASSERT_TRUE(stop.finish(seconds(30)));
  EXPECT_EQ(stop.exit_code(), 0) << stop.err();
  ASSERT_TRUE(command.finish(seconds(100)));
  EXPECT_EQ(command.exit_code(), 128 + SIGTERM) << command.err();
  EXPECT_FALSE(fs::is_empty(path("run")));
}

}  // namespace
}  // namespace lockstep::testing
