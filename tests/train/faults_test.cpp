// Workers that die at every point of a step, as real processes. The job ends with the weights of the undisturbed run.
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

class Faults : public Train {
 protected:
  // A job of 10 steps on 3 workers; the hash of its weights at the end.
  std::string hash_of(const std::string& faults, const std::vector<std::string>& more = {},
                      const std::vector<std::string>& of_run = {}) {
    std::vector<std::string> arguments = {LOCKSTEP_BINARY,  "run", "-n", "3",
                                          "--max-restarts", "50"};
    arguments.insert(arguments.end(), of_run.begin(), of_run.end());
    arguments.insert(arguments.end(),
                     {"--", LOCKSTEP_TRAIN_BINARY, "--model", "cnn", "--data", "synthetic:300",
                      "--workers", "3", "--global-batch", "32", "--shards", "8", "--steps", "10",
                      "--checkpoint", "none", "--report", path("report.json")});
    arguments.insert(arguments.end(), more.begin(), more.end());
    fs::remove(path("report.json"));
    Command command(arguments, {marker_, "LOCKSTEP_FAULTS=" + faults, "LOCKSTEP_LOG=info"});
    EXPECT_TRUE(command.finish(seconds(100))) << faults;
    EXPECT_EQ(command.exit_code(), 0) << faults << '\n' << command.out() << command.err();
    EXPECT_THAT(processes_with(marker_), IsEmpty());
    said_ = command.out() + command.err();
    std::ifstream file(path("report.json"));
    if (!file) return "no report: " + said_;
    const auto report = nlohmann::json::parse(file);
    EXPECT_TRUE(report.at("replicas_identical").get<bool>()) << faults;
    return report.at("weights_sha256");
  }

  std::string said_;
};

TEST_F(Faults, AtEveryPointOfAStepChangeNoBit) {
  const std::string expected = hash_of("");
  EXPECT_THAT(said_, Not(HasSubstr("go on at"))) << "nothing has happened";
  for (const char* where : {"forward", "backward", "reduce", "small", "commit", "numbers"}) {
    EXPECT_EQ(hash_of(std::string("kill@5:1:") + where), expected) << where;
    EXPECT_THAT(said_, HasSubstr("which was begun again")) << where;
  }
  for (const char* where : {"intent", "torn", "update", "written"}) {
    EXPECT_EQ(hash_of(std::string("kill@5:1:") + where), expected) << where;
    EXPECT_THAT(said_, HasSubstr("which was finished")) << where;
  }
}

TEST_F(Faults, NobodyIsSpared) {
  const std::vector<std::string> adamw = {"--optimizer", "adamw", "--clip-norm", "1"};
  const std::string expected = hash_of("", adamw);
  for (const char* faults : {
           "kill@3:0:torn",                                      // the leader
           "kill@5:1:update,kill@5:2:regroup",                   // another one meanwhile
           "kill@5:0:torn,kill@5:1:torn",                        // two at once
           "crash@2:2:forward,kill@4:0:written,kill@6:1:small",  // one after the other
           "kill@10:0:evaluation",                               // at the end
           "kill@5:1:intent,kill@0:1:join",                      // and its replacement
       })
    EXPECT_EQ(hash_of(faults, adamw), expected) << faults;
}

TEST_F(Faults, AStoppedWorkerIsEndedAndTheOthersGoOn) {
  const std::string expected = hash_of("");
  EXPECT_EQ(hash_of("stop@5:1:forward", {}, {"--timeout", "10", "--step-timeout", "1"}), expected);
  EXPECT_THAT(said_, HasSubstr("rank 1 was ended: others had waited 1 s for it"));
}

TEST_F(Faults, IfAllWorkersDieTheJobGoesOnFromItsCheckpoint) {
  const std::string expected = hash_of("");
  const std::vector<std::string> kept = {"--checkpoint", path("run"), "--checkpoint-every", "4"};
  EXPECT_EQ(hash_of("kill@5:0:torn,kill@5:1:torn,kill@5:2:torn", kept), expected);
  fs::remove_all(path("run"));
  EXPECT_EQ(hash_of("kill@4:0:checkpoint", kept), expected) << "the leader dies before it copies";
}

TEST_F(Faults, IfTheLeaderDiesAsItWritesTheNextOneWritesTheNextCheckpoint) {
  const std::string expected = hash_of("");
  const std::vector<std::string> kept = {"--checkpoint", path("run"), "--checkpoint-every", "4"};
  for (const char* faults : {"kill@4:0:file", "kill@8:0:file", "kill@10:0:file",
                             "kill@4:0:file,kill@8:1:file", "kill@4:0:file,kill@5:1:torn"}) {
    EXPECT_EQ(hash_of(faults, kept), expected) << faults;
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path("run")))
      names.push_back(entry.path().filename());
    EXPECT_THAT(names, ::testing::Contains("checkpoint-000000010.safetensors")) << faults;
    EXPECT_THAT(names, ::testing::Each(::testing::MatchesRegex("checkpoint-[0-9]+.safetensors")))
        << faults;
    fs::remove_all(path("run"));
  }
}

TEST_F(Faults, AListThatIsNoneIsRefused) {
  Command command({LOCKSTEP_TRAIN_BINARY, "--model", "cnn", "--data", "synthetic:300", "--steps",
                   "2", "--checkpoint", "none"},
                  {marker_, "LOCKSTEP_FAULTS=kill@never"});
  EXPECT_TRUE(command.finish(seconds(100)));
  EXPECT_EQ(command.exit_code(), 2) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("\"kill@never\" is no fault"));
}

}  // namespace
}  // namespace lockstep::testing
