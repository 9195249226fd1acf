// Workers that die at every point of a step, as real processes. The job ends with the weights of the undisturbed run.
#include <fmt/format.h>

#include <map>
#include <set>

#include "tests/support/hosts.h"
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

using ::testing::ContainsRegex;

class Faults : public Train {
 protected:
  // A job of 10 steps; the hash of its weights at the end.
  std::string hash_of(const std::string& faults, const std::vector<std::string>& more = {},
                      const std::vector<std::string>& of_run = {}) {
    std::vector<std::string> arguments = {LOCKSTEP_BINARY,  "run", "-n", std::to_string(workers_),
                                          "--max-restarts", "50"};
    arguments.insert(arguments.end(), of_run.begin(), of_run.end());
    arguments.insert(arguments.end(), {"--",
                                       "/bin/sh",
                                       "-c",
                                       place_ + "exec \"$0\" \"$@\"",
                                       LOCKSTEP_TRAIN_BINARY,
                                       "--model",
                                       "cnn",
                                       "--data",
                                       "synthetic:300",
                                       "--workers",
                                       std::to_string(workers_),
                                       "--global-batch",
                                       "32",
                                       "--shards",
                                       "8",
                                       "--steps",
                                       "10",
                                       "--checkpoint",
                                       "none",
                                       "--report",
                                       path("report.json")});
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

  int workers_ = 3;
  std::string place_;  // variables of each worker, as a shell sets them
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

// A codec without error feedback keeps nothing that a worker could take with it.
TEST_F(Faults, OfAJobWithACodecChangeNoBit) {
  const std::string expected = hash_of("", {"--codec", "bf16"});
  EXPECT_EQ(hash_of("kill@5:1:update", {"--codec", "bf16"}), expected);
  EXPECT_THAT(said_, HasSubstr("which was finished"));
  EXPECT_EQ(hash_of("kill@5:2:backward", {"--codec", "bf16"}, {"--engine", "tcp"}), expected);
  EXPECT_THAT(said_, HasSubstr("which was begun again"));
}

// The feedback of a shard is its worker's: the job begins again, from its checkpoint.
TEST_F(Faults, WithErrorFeedbackTheJobGoesOnFromItsCheckpoint) {
  const std::string expected = hash_of("", {"--codec", "int8"});
  for (const char* const engine : {"shm", "tcp"}) {
    const std::vector<std::string> more = {
        "--codec", "int8", "--checkpoint", path(std::string("run-") + engine), "--checkpoint-every",
        "4"};
    EXPECT_EQ(hash_of("kill@6:1:backward", more, {"--engine", engine}), expected) << engine;
    EXPECT_THAT(said_, HasSubstr("step 4")) << engine;
  }
}

// A round of local steps is repeated or finished as a step is. Shards have state of their own, which outlives their workers.
TEST_F(Faults, InARoundOfLocalStepsChangeNoBit) {
  const bool all = full_tests();
  for (const std::string state : {"kept", "averaged", "reset"}) {
    if (state != "kept" && !all) continue;
    const std::vector<std::string> local = {"--optimizer",   "adamw", "--local-steps", "3",
                                            "--local-state", state,   "--outer",       "nesterov"};
    const std::string expected = hash_of("", local);
    for (const std::string where : {"4:1:forward", "6:0:small", "3:2:backward", "5:0:read"}) {
      if (where > "5:1" && !all) continue;
      EXPECT_EQ(hash_of("kill@" + where, local), expected) << where << ' ' << state;
      EXPECT_THAT(said_, HasSubstr("with a round of 3 steps, which was begun again")) << where;
    }
    for (const std::string where : {"3:1:torn", "6:2:update", "9:1:written"}) {
      if (where > "5:1" && !all) continue;
      EXPECT_EQ(hash_of("kill@" + where, local), expected) << where << ' ' << state;
      EXPECT_THAT(said_, HasSubstr("which was finished")) << where;
    }
    EXPECT_EQ(hash_of("kill@4:1:forward,kill@3:2:regroup,kill@0:1:join", local), expected) << state;
  }
}

// A shard of a streamed model keeps its weights, too.
TEST_F(Faults, InARoundThatExchangesAFragmentChangeNoBit) {
  std::vector<std::string> local = {"--optimizer", "adamw", "--local-steps", "6",
                                    "--fragments", "2",     "--outer",       "nesterov"};
  const std::string expected = hash_of("", local);
  for (const std::string where : {"4:1:forward", "6:0:small", "6:1:backward", "9:0:read"}) {
    if (where > "6:1" && !full_tests()) continue;
    EXPECT_EQ(hash_of("kill@" + where, local), expected) << where;
    EXPECT_THAT(said_, HasSubstr("with a round of 3 steps, which was begun again")) << where;
  }
  EXPECT_EQ(hash_of("kill@6:1:torn,kill@9:2:written", local), expected);
  EXPECT_THAT(said_, HasSubstr("which was finished"));
  local.insert(local.end(), {"--checkpoint", path("run"), "--checkpoint-every", "3"});
  EXPECT_EQ(hash_of("kill@7:1:forward", local, {"--engine", "tcp"}), expected);
  EXPECT_THAT(said_, HasSubstr("step 6"));
}

// Where workers share no memory, state that a shard keeps is its worker's: the job goes on from its checkpoint.
TEST_F(Faults, OfLocalStepsWithoutSharedMemoryGoBackToTheCheckpointOnlyForStateThatIsKept) {
  for (const std::string state : {"kept", "averaged", "reset"}) {
    std::vector<std::string> local = {"--optimizer", "adamw",         "--local-steps",
                                      "2",           "--local-state", state};
    const std::string expected = hash_of("", local);
    local.insert(local.end(), {"--checkpoint", path("run-" + state), "--checkpoint-every", "4"});
    EXPECT_EQ(hash_of("kill@7:1:forward", local, {"--engine", "tcp"}), expected) << state;
    EXPECT_THAT(said_, HasSubstr(state == "kept" ? "step 4" : "which was begun again")) << state;
  }
}

// A round of asynchronous steps that has lost a worker goes on with the updates that it has; if the worker was writing one, the
// round is begun again. A replay of the order has the bits, through other faults, too. Which worker takes which task is open, so a
// fault has several steps to strike in.
TEST_F(Faults, InARoundOfAsynchronousStepsTakeNoUpdateAway) {
  std::vector<std::string> more = {"--staleness", "2", "--round", "3"};
  for (const std::string where : {"update", "backward", "forward", "backups"}) {
    const bool backups = where == "backups";
    if ((where == "forward" || backups) && !full_tests()) continue;
    if (backups) more = {"--backups", "2", "--round", "3"};
    std::vector<std::string> recorded = {"--optimizer", "adamw"};
    recorded.insert(recorded.end(), more.begin(), more.end());
    std::vector<std::string> replayed = recorded;
    recorded.insert(recorded.end(), {"--order", path("order")});
    replayed.insert(replayed.end(), {"--replay", path("order")});
    const auto in_round = [&](int worker) {
      return fmt::format("kill@4:{0}:{1},kill@5:{0}:{1},kill@8:{0}:{1}", worker,
                         backups ? "backward" : where);
    };
    const std::string expected = hash_of(in_round(1), recorded);
    if (where == "update") {
      EXPECT_THAT(said_, HasSubstr("with a round of 3 steps, which was begun again"));
    } else {
      EXPECT_THAT(said_, ContainsRegex("round of 3 steps, which goes on after [1-9]")) << where;
    }
    EXPECT_EQ(hash_of("", replayed), expected) << where;
    EXPECT_EQ(hash_of(in_round(0) + ",kill@6:2:small,kill@9:1:torn", replayed), expected) << where;
    EXPECT_THAT(said_, HasSubstr("which was begun again")) << "a replay keeps the order";
  }
}

// One worker, another one while the rest meet, and a third one while it writes what the round has changed.
TEST_F(Faults, InARoundOfAsynchronousStepsMayBeMany) {
  const std::vector<std::string> rounds = {"--staleness", "any", "--round", "5"};
  std::vector<std::string> recorded = rounds, replayed = rounds;
  recorded.insert(recorded.end(), {"--order", path("order")});
  replayed.insert(replayed.end(), {"--replay", path("order")});
  workers_ = 4;
  const std::string expected = hash_of(
      "kill@2:1:backward,kill@3:1:backward,kill@4:1:backward,kill@0:2:regroup,kill@0:3:torn",
      recorded);
  EXPECT_THAT(said_, ContainsRegex("round of 5 steps, which goes on after [1-9]"));
  EXPECT_THAT(said_, HasSubstr("round of 5 steps, which was finished"));
  EXPECT_THAT(said_, Not(HasSubstr("which was begun again")));
  workers_ = 2;
  EXPECT_EQ(hash_of("", replayed), expected);
}

// Each worker owns a slice of the weights there. The clerk, rank 0, is lost, too.
TEST_F(Faults, InARoundOfAsynchronousStepsWithoutSharedMemoryAreNotInItsOrder) {
  const std::vector<std::string> rounds = {"--optimizer", "adamw",   "--staleness",
                                           "2",           "--round", "3"};
  const std::vector<std::string> tcp = {"--engine", "tcp"};
  for (const std::string where : {"update", "forward", "backward"}) {
    if (where != "update" && !full_tests()) continue;
    std::vector<std::string> recorded = rounds, replayed = rounds;
    recorded.insert(recorded.end(), {"--order", path("order")});
    replayed.insert(replayed.end(), {"--replay", path("order")});
    const auto in_round = [&](int worker) {
      return fmt::format("kill@3:{0}:{1},kill@4:{0}:{1},kill@5:{0}:{1}", worker, where);
    };
    const std::string expected = hash_of(in_round(0), recorded, tcp);
    EXPECT_THAT(said_, HasSubstr("with a round of 3 steps, which was begun again")) << where;
    EXPECT_EQ(hash_of("", replayed), expected) << where;
    EXPECT_EQ(hash_of(in_round(1) + ",kill@6:2:small,kill@9:1:torn", replayed, tcp), expected)
        << where;
  }
}

// A worker that is stopped while the weights are its own to change holds up all others; elsewhere one that owns a slice, or that is
// the clerk.
TEST_F(Faults, AWorkerThatIsStoppedInAnAsynchronousRoundIsEnded) {
  const std::vector<std::string> rounds = {"--staleness", "2", "--round", "5"};
  for (const auto& [engine, worker] :
       {std::pair("shm", 1), std::pair("tcp", 0), std::pair("tcp", 1)}) {
    if (worker == 1 && engine == std::string("tcp") && !full_tests()) continue;
    std::vector<std::string> recorded = rounds, replayed = rounds;
    recorded.insert(recorded.end(), {"--order", path("order")});
    replayed.insert(replayed.end(), {"--replay", path("order")});
    const std::string expected =
        hash_of(fmt::format("stop@5:{0}:update,stop@6:{0}:update,stop@7:{0}:update", worker),
                recorded, {"--engine", engine, "--timeout", "300", "--step-timeout", "2"});
    EXPECT_THAT(said_,
                HasSubstr(fmt::format("rank {} was ended: others had waited 2 s for it", worker)));
    EXPECT_EQ(hash_of("", replayed), expected);
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
           "kill@5:2:read,kill@7:1:hook",                        // in the data, in the program
           "slow@5:1:reduce:200ms,slow@6:0:update:50ms",         // nobody
       })
    EXPECT_EQ(hash_of(faults, adamw), expected) << faults;
}

// The others wait in the step, and need not time out: --timeout is longer than the test may take.
TEST_F(Faults, AStoppedWorkerIsEndedAndTheOthersGoOn) {
  const std::string expected = hash_of("");
  for (const char* where : {"forward", "backward", "update"}) {
    const std::string fault = std::string("stop@5:1:") + where;
    EXPECT_EQ(hash_of(fault, {}, {"--timeout", "300", "--step-timeout", "2"}), expected) << where;
    EXPECT_THAT(said_, HasSubstr("rank 1 was ended: others had waited 2 s for it")) << where;
  }
}

TEST_F(Faults, AreEventsOfTheReportWithWhatTheyCost) {
  const auto report = report_of({"--workers", "3", "--shards", "8", "--global-batch", "32",
                                 "--steps", "200", "--max-restarts", "5", "--step-timeout", "2",
                                 "--faults", "kill@5:1:update,stop@20:2:forward"});
  std::map<std::string, nlohmann::json> first;
  double before = 0;
  for (const auto& event : report.at("events")) {
    first.try_emplace(event.at("what"), event);
    EXPECT_GE(event.at("at_s").get<double>(), before) << event;
    before = event.at("at_s");
    EXPECT_FALSE(event.at("host").get<std::string>().empty()) << event;
    EXPECT_GE(event.at("generation"), 2) << event;
  }
  ASSERT_TRUE(first.contains("killed") && first.contains("hung") && first.contains("joined"))
      << report.at("events");
  EXPECT_EQ(first["killed"]["worker"], 1);
  EXPECT_EQ(first["killed"]["signal"], "SIGKILL");
  EXPECT_THAT(first["killed"]["text"], HasSubstr("rank 1 was killed by SIGKILL; 2 workers go on"));
  EXPECT_EQ(first["hung"]["worker"], 2);
  EXPECT_EQ(first["hung"]["waited_s"], 2);
  for (const char* lost : {"killed", "hung"}) {
    const double formed = first[lost]["formed_ms"];
    EXPECT_GT(formed, 0) << lost;
    EXPECT_GT(first[lost]["first_phase_ms"], formed) << lost;
  }
  EXPECT_GT(first["joined"]["starting_ms"].get<double>(), 0);
  EXPECT_TRUE(first["joined"]["formed_ms"].is_null()) << "the others have not waited for it";
  EXPECT_THAT(report_of({"--data", "synthetic:300", "--steps", "2"}).at("events"), IsEmpty());
}

// One that hangs elsewhere is found when the others time out.
TEST_F(Faults, AWorkerThatIsStoppedInAnEvaluationIsEndedAtTheRegroup) {
  const std::string expected = hash_of("");
  EXPECT_EQ(hash_of("stop@10:1:evaluation", {}, {"--timeout", "10", "--step-timeout", "1"}),
            expected);
  EXPECT_THAT(said_, HasSubstr("rank 1 was ended: others had waited 1 s for it"));
}

// No step that was committed is run again, though there is no checkpoint.
TEST_F(Faults, IfAllWorkersDieOthersGoOnFromTheirMemory) {
  const std::string expected = hash_of("");
  struct Case {
    const char* where;
    int done;  // the last step that counts
    bool quick;
  };
  for (const auto& [where, done, quick] :
       {Case{"forward", 4, true}, Case{"reduce", 4, false}, Case{"small", 4, true},
        Case{"intent", 5, false}, Case{"torn", 5, true}, Case{"update", 5, false},
        Case{"written", 5, false}, Case{"commit", 5, true}, Case{"numbers", 5, false}}) {
    if (!quick && !full_tests()) continue;
    EXPECT_EQ(hash_of(all_at(5, where)), expected) << where;
    EXPECT_THAT(said_, HasSubstr(fmt::format("goes on after step {}, from the memory", done)))
        << where;
  }
}

// Whatever an update computes besides.
TEST_F(Faults, IfAllWorkersDieInAnUpdateItIsFinishedToTheSameBits) {
  const std::vector<std::vector<std::string>> jobs = {
      {"--optimizer", "adamw", "--clip-norm", "0.1", "--ema", "0.9"},
      {"--precision", "bf16-held", "--loss-scale", "1024"},
      {"--optimizer", "lamb"},
      {"--optimizer", "lars", "--momentum", "0.9"},
      {"--optimizer", "sgd", "--clip-value", "0.01", "--warmup", "5"},
  };
  for (const auto& job : jobs) {
    if (&job - jobs.data() >= 2 && !full_tests()) continue;
    const std::string expected = hash_of("", job);
    EXPECT_EQ(hash_of(all_at(5, "torn"), job), expected) << job[1];
    EXPECT_THAT(said_, HasSubstr("goes on after step 5, from the memory")) << job[1];
  }
}

TEST_F(Faults, IfAllWorkersDieMoreThanOnceNothingIsLost) {
  const std::string expected = hash_of("");
  // The last of them alone; after a regroup. In the first step, in the last, in an evaluation.
  std::vector<std::string> all = {"kill@3:1:forward,kill@3:2:forward,kill@4:0:torn",
                                  "kill@3:1:torn," + all_at(5, "torn")};
  if (full_tests())
    all.insert(all.end(), {all_at(0, "commit"), all_at(9, "torn"), all_at(10, "evaluation")});
  for (const std::string& faults : all) EXPECT_EQ(hash_of(faults), expected) << faults;
  // And while they take the memory over.
  EXPECT_EQ(hash_of(all_at(5, "torn") + ",kill@2:0:join,kill@3:1:join"), expected);
  EXPECT_THAT(said_, HasSubstr("goes on after step 5, from the memory"));
  EXPECT_THAT(
      said_,
      HasSubstr("again, from the memory that they left, or from the checkpoint (generation 4)"));
}

TEST_F(Faults, AJobOfOneWorkerLosesNothingEither) {
  const std::string expected = hash_of("");
  workers_ = 1;
  for (const char* where : {"backward", "torn", "commit"}) {
    EXPECT_EQ(hash_of(std::string("kill@5:0:") + where), expected) << where;
    EXPECT_THAT(said_, HasSubstr("from the memory of the workers that have died")) << where;
  }
}

// A generation that has not committed a phase of its own yet: the memory of the one before still counts.
TEST_F(Faults, IfAllWorkersDieSoonAfterARegroupNothingIsLost) {
  const std::string expected = hash_of("");
  EXPECT_EQ(hash_of("kill@5:2:update,kill@6:0:forward,kill@6:1:forward"), expected);
  EXPECT_THAT(said_, HasSubstr("goes on after step 5, from the memory"));
}

TEST_F(Faults, IfAllWorkersDieAndShareNoMemoryTheJobGoesOnFromItsCheckpoint) {
  const std::string expected = hash_of("");
  const std::vector<std::string> kept = {"--checkpoint", path("run"), "--checkpoint-every", "4"};
  EXPECT_EQ(hash_of(all_at(5, "torn"), kept, {"--engine", "tcp"}), expected);
  EXPECT_THAT(said_, Not(HasSubstr("from the memory of")));
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

// What the guide says of the kinds that a job does not survive yet.
TEST_F(Faults, AChangedBitSendsTheJobBackToItsCheckpoint) {
  const std::string expected = hash_of("");
  const std::vector<std::string> kept = {"--checkpoint", path("run"), "--checkpoint-every", "4"};
  struct Case {
    std::string fault;
    std::string reason;
  };
  for (const Case& one :
       {Case{"flip@5:1:reduce:weights", "a bit of "},
        Case{"flip@5:0:reduce:state,slow@4:0:file:1s",  // it is still being written
             "or of its optimizer state"},
        Case{"flip@5:1:backward:gradients", "a bit of the gradient of "}}) {
    fs::remove_all(path("run"));
    EXPECT_EQ(hash_of(one.fault, kept), expected) << one.fault;
    EXPECT_THAT(said_, HasSubstr(one.reason));
    EXPECT_THAT(said_, HasSubstr("The job goes back to the checkpoint of step 4")) << said_;
  }
}

TEST_F(Faults, AWorkerWithoutMemoryLeavesAndTheOthersGoOn) {
  const std::string expected = hash_of("");
  for (const char* fault : {"oom@5:1:forward", "oom@5:1:read"}) {
    EXPECT_EQ(hash_of(fault), expected) << fault;
    EXPECT_THAT(said_, HasSubstr("this worker leaves the job")) << fault;
  }
}

TEST_F(Faults, AFullDiskEndsTheJobWithThatReason) {
  Command command({LOCKSTEP_BINARY, "train", "--workers", "2", "--max-restarts", "5", "--faults",
                   "disk@4:0:checkpoint", "--model", "cnn", "--data", "synthetic:300", "--steps",
                   "10", "--checkpoint", path("run"), "--checkpoint-every", "4"},
                  {marker_});
  EXPECT_TRUE(command.finish(seconds(100)));
  EXPECT_EQ(command.exit_code(), 1) << command.out() << command.err();
  EXPECT_THAT(command.err(), HasSubstr("no space left in "));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(Faults, WorkersThatShareNoMemoryRecover) {
  const std::string expected = hash_of("");
  const std::vector<std::string> tcp = {"--engine",       "tcp", "--timeout", "30",
                                        "--step-timeout", "5"};
  for (const char* faults : {
           "kill@5:1:backward",                // before anybody has its sums
           "kill@5:0:small,kill@7:2:written",  // the others have theirs
           "cut@5:0:numbers",                  // it lives
           "cut@5:0:forward,kill@5:1:regroup",
       })
    EXPECT_EQ(hash_of(faults, {}, tcp), expected) << faults;
}

// Its losses may have reached the others, and theirs may not reach it. Then they commit the step, and it takes their state.
// Which of them gets so far is a question of time: there are several cuts, and every order must give the same bits.
TEST_F(Faults, AWorkerThatIsBehindTakesTheStateOfAnother) {
  const std::vector<std::string> tcp = {"--engine",       "tcp", "--timeout", "30",
                                        "--step-timeout", "5"};
  const std::vector<std::string> adamw = {"--optimizer", "adamw", "--ema", "0.9"};
  for (const auto& job : {std::vector<std::string>{}, adamw}) {
    const std::string undisturbed = hash_of("", job);
    for (const char* faults : {"cut@2:2:losses,cut@3:1:losses,cut@4:0:losses,cut@6:2:losses",
                               "cut@3:0:losses,kill@3:1:regroup,cut@7:2:losses"})
      EXPECT_EQ(hash_of(faults, job, tcp), undisturbed) << faults << said_;
  }
}

// Workers 0 and 1 share memory, worker 2 is on another host.
TEST_F(Faults, EveryHostHasAPageOfItsOwn) {
  const std::string expected = hash_of("");
  place_ = "LOCKSTEP_HOST=host$((RANK / 2)) ";
  const std::vector<std::string> tcp = {"--engine",       "tcp", "--timeout", "30",
                                        "--step-timeout", "5"};
  for (const char* faults : {
           "kill@3:1:torn,kill@6:0:update",  // its neighbour finishes
           "kill@5:2:intent",                // a whole host
           "kill@5:0:torn,kill@5:1:torn",    // the other one
           "cut@5:2:losses",                 // it lives
           "kill@5:1:reduce,kill@0:1:join",
       })
    EXPECT_EQ(hash_of(faults, {}, tcp), expected) << faults;
}

TEST_F(Faults, ACutWithoutAConnectionSaysSoAndHarmsNothing) {
  const std::string expected = hash_of("");
  EXPECT_EQ(hash_of("cut@5:1:forward"), expected);
  EXPECT_THAT(said_, HasSubstr("nothing was cut: this worker has no TCP connection"));
}

TEST_F(Faults, OfARateByStepStrikeTheSameEachTime) {
  const auto struck = [&](const std::string& seed) {
    hash_of("", {}, {"--faults", "slow=1ms:0.8/step", "--fault-seed", seed});
    std::set<std::string> lines;
    for (const std::string& line : lines_of(said_)) {
      if (line.find("lockstep: fault ") != std::string::npos) lines.insert(line);
    }
    return lines;
  };
  const auto first = struck("7");
  EXPECT_THAT(first, Not(IsEmpty()));
  EXPECT_EQ(struck("7"), first);
  EXPECT_NE(struck("8"), first);
}

// An update of a library while the job runs changes more than a variable does, but is seen in the same way.
TEST_F(Faults, ANewcomerThatComputesOtherwiseIsRefusedAndTheJobGoesOn) {
  Command command({LOCKSTEP_BINARY, "run", "-n", "2", "--max-restarts", "5", "--", "/bin/sh", "-c",
                   "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || export DNNL_MAX_CPU_ISA=DEFAULT; exec " +
                       quoted(LOCKSTEP_TRAIN_BINARY) +
                       " --model cnn --data synthetic:300 --workers 2 --global-batch 8 --shards 2 "
                       "--steps 100000 --checkpoint none"},
                  {marker_, "LOCKSTEP_FAULTS=kill@5:1:forward"});
  ASSERT_TRUE(command.wait_for("rank 1 could not join and exited with code", 1, seconds(60)))
      << command.out() << command.err();
  EXPECT_THAT(command.err(), HasSubstr("environment DNNL_MAX_CPU_ISA=DEFAULT, the job"));
  EXPECT_THAT(command.err(), HasSubstr("1 worker goes on without it"));
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 128 + SIGTERM) << command.out() << command.err();
}

TEST_F(Faults, AListThatIsNoneIsRefused) {
  Command command({LOCKSTEP_TRAIN_BINARY, "--model", "cnn", "--data", "synthetic:300", "--steps",
                   "2", "--checkpoint", "none"},
                  {marker_, "LOCKSTEP_FAULTS=kill@never"});
  EXPECT_TRUE(command.finish(seconds(100)));
  EXPECT_EQ(command.exit_code(), 2) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("\"kill@never\" is no fault"));
  for (const char* faults : {"kill@never", "kill=often", "tickle=1/min", "kill@5:7:update"}) {
    Command run({LOCKSTEP_BINARY, "run", "-n", "2", "--faults", faults, "--", "/bin/echo", "began"},
                {marker_});
    EXPECT_TRUE(run.finish(seconds(100)));
    expect_refusal(run, std::string("--faults: "), 2);
    EXPECT_EQ(run.out(), "") << "nothing was started";
    expect_refusal(finished({"--faults", faults}), "--faults: ", 2);
  }
}

}  // namespace
}  // namespace lockstep::testing
