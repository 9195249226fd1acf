// `lockstep train` as a person runs it: what it prints, keeps and refuses, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>

#include "tests/launcher/terminal.h"
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Not;

TEST_F(Train, WritesAReportWithEverythingThatCanBeAsked) {
  const auto report = report_of({"--steps", "6", "--checkpoint", path("run")});
  EXPECT_EQ(report["workers"], 2);
  EXPECT_EQ(report["engine"], "shm");
  EXPECT_EQ(report["model"], "cnn");
  EXPECT_EQ(report["parameters"], 421'738);
  EXPECT_EQ(report["steps"], 6);
  EXPECT_GT(report["final_loss"].get<double>(), 0);
  EXPECT_GT(report["test_accuracy"].get<double>(), 0);
  EXPECT_GT(report["samples_per_second"].get<double>(), 0);
  EXPECT_GE(report["step_ms"]["p95"].get<double>(), report["step_ms"]["p50"].get<double>());
  EXPECT_GE(report["exposed_comm_ms"]["p50"].get<double>(), 0);
  EXPECT_EQ(report["bytes_moved_per_step"], 0);
  EXPECT_EQ(report["times_ring"], nullptr);
  EXPECT_EQ(report["replicas_identical"], true);
  EXPECT_EQ(report["weights_sha256"].get<std::string>().size(), 64U);
  EXPECT_TRUE(fs::exists(report["checkpoint"].get<std::string>()));
}

// Once for each engine: tests/torch/same_bits_test.cpp has the rest, with threads.
TEST_F(Train, TheSameJobGivesTheSameBitsOnAnyNumberOfProcesses) {
  int workers = 0;
  nlohmann::json times_ring;
  const auto hash = [&](std::vector<std::string> options) {
    options.insert(options.end(),
                   {"--steps", "5", "--data", "synthetic:40"});  // a short batch, too
    const auto report = report_of(options);
    workers = report["workers"];
    times_ring = report["times_ring"];
    return report["weights_sha256"];
  };
  const auto alone = hash({"--workers", "1"});
  EXPECT_EQ(hash({"--workers", "3"}), alone);
  EXPECT_EQ(workers, 3);
  EXPECT_EQ(hash({"--workers", "3", "--engine", "tcp", "--bucket-bytes", "1000"}), alone);
  EXPECT_EQ(hash({"--workers", "4", "--engine", "tcp"}), alone);
  EXPECT_NEAR(times_ring.get<double>(), 1, 0.01);  // 8 shards on 4 workers: one partial each
}

TEST_F(Train, PrintsPlainLinesAndASummaryWhenPiped) {
  Command command = finished({"--steps", "5"});
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_THAT(command.err(), IsEmpty());
  EXPECT_THAT(command.out(), HasSubstr("cnn on synthetic: 421,738 parameters"));
  EXPECT_THAT(command.out(), HasSubstr("step 5/5"));
  EXPECT_THAT(command.out(), HasSubstr("Trained after 5 steps"));
  EXPECT_THAT(command.out(), HasSubstr("identical"));
  EXPECT_THAT(command.out(), Not(HasSubstr("\033")));
  EXPECT_THAT(command.out(), Not(HasSubstr("\r")));
}

TEST_F(Train, SaysThatACodecWouldBeginBehindTheEnd) {
  const std::vector<std::string> job = {"--steps", "6", "--engine", "tcp"};
  const auto said = [&](std::vector<std::string> more) {
    more.insert(more.end(), job.begin(), job.end());
    return finished(more).out();
  };
  EXPECT_THAT(said({"--codec", "power-sgd"}),
              AllOf(HasSubstr("power-sgd:1:1000: encodes nothing, because it begins after 1000 "),
                    Not(HasSubstr("traffic"))));
  EXPECT_THAT(said({"--codec", "power-sgd:1:5"}),
              AllOf(Not(HasSubstr("encodes nothing")), HasSubstr("traffic")));
  EXPECT_THAT(
      said({"--codec", "power-sgd:1:3", "--local-steps", "2"}),
      HasSubstr("begins after 3 exchanges, the last number of its name, and the job has 3"));
}

TEST_F(Train, DrawsABarOnATerminalAndEndsOnCtrlC) {
  OnTerminal terminal(
      {LOCKSTEP_BINARY, "train", "--model", "cnn", "--data", "synthetic", "--workers", "2",
       "--global-batch", "8", "--steps", "100000", "--checkpoint", path("run")},
      true);
  ASSERT_TRUE(terminal.wait_for("\r\033[K", 3, seconds(60))) << terminal.screen();
  EXPECT_THAT(terminal.screen(), HasSubstr("step "));
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(seconds(30)), 130);
  EXPECT_THAT(terminal.screen(), HasSubstr("Stopped after"));
  EXPECT_THAT(terminal.screen(), HasSubstr("\r\033[Klockstep: passed SIGINT on"));
  EXPECT_THAT(checkpoints(), Not(IsEmpty()));
}

TEST_F(Train, ResumesToTheSameBits) {
  const std::vector<std::string> job = {"--optimizer", "adamw", "--accumulate", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), job.begin(), job.end());
    return report_of(more);
  };
  const auto straight = with({"--steps", "9"});
  const auto half = with({"--steps", "4", "--checkpoint", path("run")});
  EXPECT_NE(half["weights_sha256"], straight["weights_sha256"]);
  const auto resumed = with({"--steps", "9", "--checkpoint", path("run"), "--resume"});
  EXPECT_EQ(resumed["first_step"], 4);
  EXPECT_EQ(resumed["weights_sha256"], straight["weights_sha256"]);
}

TEST_F(Train, ResumesInTheMiddleOfAnEpochWithAShortLastBatch) {
  // 54 samples in batches of 8: the last of an epoch has 6, for 2 workers with 4 passes each of one sample.
  const std::vector<std::string> job = {
      "--data",      "synthetic:60", "--workers", "2",     "--accumulate", "4",
      "--optimizer", "rmsprop",      "--lr",      "0.001", "--momentum",   "0.9"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), job.begin(), job.end());
    return report_of(more);
  };
  const auto straight = with({"--steps", "9"});
  with({"--steps", "6", "--checkpoint", path("run")});
  const auto resumed = with({"--steps", "9", "--checkpoint", path("run"), "--resume"});
  EXPECT_EQ(resumed["weights_sha256"], straight["weights_sha256"]);
}

TEST_F(Train, GoesOnToTheSameBitsOnAnotherNumberOfWorkers) {
  const std::vector<std::string> job = {"--data",      "synthetic:100", "--clip-norm", "0.5",
                                        "--optimizer", "lamb",          "--ema",       "0.9"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), job.begin(), job.end());
    return report_of(more);
  };
  const auto straight = with({"--steps", "15", "--workers", "2"});
  with({"--steps", "5", "--workers", "4", "--checkpoint", path("run")});
  with({"--steps", "10", "--workers", "3", "--checkpoint", path("run"), "--resume"});
  const auto last =
      with({"--steps", "15", "--workers", "1", "--checkpoint", path("run"), "--resume"});
  EXPECT_EQ(last["first_step"], 10);
  EXPECT_EQ(last["weights_sha256"], straight["weights_sha256"]);
  EXPECT_EQ(last["final_loss"], straight["final_loss"]);
  EXPECT_EQ(last["test_loss"], straight["test_loss"]);
}

TEST_F(Train, CtrlCWritesACheckpointAndEnds) {
  Command command = start({"--steps", "100000", "--checkpoint", path("run")});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 130);
  EXPECT_THAT(command.out(), HasSubstr("Stopped after"));
  EXPECT_THAT(checkpoints(), Not(IsEmpty()));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
  const auto resumed = report_of({"--steps", "1", "--checkpoint", path("run"), "--resume"});
  EXPECT_GT(resumed["first_step"].get<int>(), 0);
}

// A long job measures what its shards cost before it begins; a short one does not.
TEST_F(Train, MeasuringWhatShardsCostChangesNoBit) {
  const auto log = [&](const std::string& name) {
    std::ifstream file(path(name));
    return lines_of(std::string(std::istreambuf_iterator<char>(file), {}));
  };
  const auto report = report_of({"--steps", "1", "--hashes", path("short")});
  EXPECT_EQ(report["shard_cost"], nullptr);
  Command command =
      start({"--steps", "100000", "--hashes", path("long"), "--report", path("report.json")});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(30)));
  std::ifstream file(path("report.json"));
  const auto cost = nlohmann::json::parse(file)["shard_cost"];
  EXPECT_EQ(cost["fewest_shards"], 2);
  EXPECT_GT(cost["passes_ms"].get<double>(), 0);
  EXPECT_GT(cost["passes_ms_of_fewest"].get<double>(), 0);
  const auto expected = log("short");
  auto first = log("long");
  ASSERT_GT(expected.size(), 1U);
  ASSERT_GE(first.size(), expected.size());
  first.resize(expected.size());
  EXPECT_EQ(first, expected);
}

TEST_F(Train, AKillAtAnyMomentLeavesAWholeCheckpoint) {
  const std::vector<std::string> job = {
      "--steps", "100000", "--checkpoint", path("run"), "--checkpoint-every", "1", "--resume"};
  std::mt19937 random(1);
  int last = 0;
  for (int round = 0; round < 4; ++round) {
    Command command = start(job);
    ASSERT_TRUE(command.wait_for("step ", 1, seconds(60)));
    ::usleep(std::uniform_int_distribution<useconds_t>(0, 400'000)(random));
    command.signal(SIGKILL);
    ASSERT_TRUE(command.finish(seconds(20)));
    // As a kill between two instructions of a writer leaves it.
    std::ofstream(path("run/.checkpoint-000000007.safetensors.lockstep-tmp-1")) << "half";
    Command check = finished({"--workers", "1", "--steps", "1", "--quiet", "--checkpoint",
                              path("run"), "--resume", "--report", path("report.json")});
    ASSERT_EQ(check.exit_code(), 0) << check.err();
    std::ifstream file(path("report.json"));
    const int step = nlohmann::json::parse(file)["first_step"];
    EXPECT_GE(step, last);
    last = step;
  }
  EXPECT_GT(last, 0);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path("run")))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::Each(::testing::MatchesRegex("checkpoint-[0-9]+.safetensors")));
  EXPECT_LE(names.size(), 3U)
      << "two are kept; a third may have been there when the job was killed";
}

TEST_F(Train, AKilledWorkerIsNamedAndTheRestEnds) {
  Command command = start({"--steps", "100000"});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  const pid_t victim = worker(1);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 137);
  EXPECT_THAT(command.err(), HasSubstr("rank 1"));
  EXPECT_THAT(command.err(), HasSubstr("SIGKILL"));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(Train, AWorkerThatEndsBeforeItJoinsEndsTheJob) {
  Command command = start({"--steps", "100000"});
  pid_t victim = 0;
  for (const Deadline deadline = seconds(20); victim == 0 && !deadline.expired();)
    victim = worker(1);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);  // long before LibTorch is loaded
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 137);
  EXPECT_THAT(command.err(), HasSubstr("rank 1"));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(Train, RefusesWhatItCannotUnderstandBeforeItStartsAnything) {
  expect_refusal(finished({"--model", "vgg"}), "--model vgg: choose from mlp", 2);
  expect_refusal(finished({"--modle", "mlp"}), "unknown option --modle", 2);
  expect_refusal(finished({"--data", path("none")}), "there is no such file", 2);
  expect_refusal(finished({"--global-batch", "1"}), "1 shard cannot be hosted by 2 workers", 2);
  expect_refusal(finished({"--global-batch", "9", "--shards", "2"}), "choose a multiple of 2", 2);
  expect_refusal(finished({"--shards", "4", "--accumulate", "2"}), "give one", 2);
  expect_refusal(finished({"--epochs", "1", "--steps", "1"}), "either --epochs or --steps", 2);
  expect_refusal(finished({"--workers", "0"}), "--workers 0", 2);
  expect_refusal(finished({"--lr", "fast"}), "--lr", 2);
  expect_refusal(finished({"--threads", "0"}), "--threads 0", 2);
  expect_refusal(finished({"--flush-denormal", "maybe"}), "choose from on, off", 2);
  expect_refusal(finished({"--deterministic", "maybe"}), "choose from on, off", 2);
  expect_refusal(finished({"--resume"}), "give a directory: --resume DIR", 2);
  expect_refusal(finished({"--momentum", "1e999"}), "--momentum 1e999: give a finite number", 2);
  expect_refusal(finished({"--checkpoint", "/sys/run", "--quiet"}), "/sys/run: ", 2);
  expect_refusal(finished({"--report", path("none/report.json")}), "there is no directory", 2);
  expect_refusal(finished({"--report", "/dev/full"}), "it is not a regular file", 2);
  expect_refusal(finished({"--report", path(std::string(300, 'x'))}), "File name too long", 2);
  expect_refusal(finished({"--report", "-"}), "--report -: give the name of a file", 2);
  expect_refusal(finished({"--engine", "pigeon", "--quiet"}), "pigeon", 2);
}

TEST_F(Train, StepsThatAreNotInTheLogAreNotVerified) {
  report_of({"--steps", "3", "--hashes", path("log")});
  const auto until = [&](const std::string& step) {
    return finished({"--steps", "3", "--quiet", "--verify", path("log"), "--until", step});
  };
  const Command whole = until("2");
  EXPECT_EQ(whole.exit_code(), 0) << whole.err();
  expect_refusal(until("9"), "steps 3 to 9 were not compared", 2);
}

// More workers than any host has GPUs: the same on hosts with and without one, but for the reason. A driver takes its time
// to start.
TEST_F(Train, RefusesGpusThatAreNotThereAtOnce) {
  const bool driver = fs::exists("/dev/nvidiactl");
  const auto limit = std::chrono::milliseconds(driver || kSlowBuild ? 30'000 : 1000);
  auto best = limit;
  for (int attempt = 0; attempt < 3 && best >= limit; ++attempt) {
    const auto begun = std::chrono::steady_clock::now();
    expect_refusal(finished({"--device", "cuda", "--workers", "1000", "--shards", "1000",
                             "--global-batch", "1000"}),
                   "lockstep: --device cuda: ", 2);
    best = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 begun);
  }
  EXPECT_LT(best, limit);
  expect_refusal(finished({"--device", "cuda", "--engine", "shm"}), "--engine shm moves no", 2);
}

TEST_F(Train, ThePrecisionIsPartOfTheJob) {
  std::ofstream text(path("text"));
  for (int line = 0; line < 100; ++line) text << "line " << line << " of a short text\n";
  text.close();
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--model", "gpt", "--data", path("text"), "--context", "16"});
    return more;
  };
  const auto report =
      report_of(with({"--steps", "2", "--precision", "bf16", "--checkpoint", path("run")}));
  EXPECT_EQ(report["precision"], "bf16");
  EXPECT_EQ(report["device"], "cpu");
  const auto alone = report_of(with({"--steps", "2", "--precision", "bf16", "--workers", "1"}));
  EXPECT_EQ(alone["weights_sha256"], report["weights_sha256"]);
  EXPECT_NE(report_of(with({"--steps", "2", "--workers", "1"}))["weights_sha256"],
            report["weights_sha256"]);
  const std::vector<std::string> again = {"--steps",      "3",         "--workers", "1",
                                          "--checkpoint", path("run"), "--resume"};
  auto other = with(again);
  other.insert(other.end(), {"--precision", "float32", "--quiet"});
  expect_refusal(finished(other), "precision = bf16 and this job has float32", 1);
  EXPECT_EQ(report_of(with(again))["precision"], "bf16");
}

TEST_F(Train, HeldWeightsAndAScalerHaveTheSameBitsOnAnyNumberOfWorkers) {
  const auto train = [&](const std::string& workers) {
    return report_of({"--model", "mlp", "--data", "synthetic:60", "--steps", "3", "--precision",
                      "bf16-held", "--loss-scale", "1024", "--noise-scale", "2", "--workers",
                      workers});
  };
  const auto report = train("2");
  EXPECT_EQ(report["loss_scale"], 1024);
  EXPECT_EQ(report["skipped_steps"], 0);
  const auto alone = train("1");
  EXPECT_EQ(alone["weights_sha256"], report["weights_sha256"]);
  EXPECT_GT(report["noise_scale"]["noise"], 0);
  EXPECT_EQ(alone["noise_scale"], report["noise_scale"]);
  // LibTorch 1.13 has no float16 on CPUs.
  const Command fp16 = finished(
      {"--model", "mlp", "--workers", "1", "--steps", "2", "--precision", "fp16", "--quiet"});
  if (fp16.exit_code() != 0) expect_refusal(fp16, "this LibTorch has no Autocast to Half here", 2);
}

TEST_F(Train, RefusesDataThatTheModelCannotRead) {
  expect_refusal(finished({"--model", "gpt", "--quiet"}), "gpt reads text", 2);
  std::ofstream(path("damaged.csv")) << "1,2,0\n3,x,1\n";
  expect_refusal(finished({"--model", "mlp", "--data", path("damaged.csv"), "--quiet"}),
                 "damaged.csv", 2);
}

TEST_F(Train, RefusesACheckpointOfAnotherJob) {
  report_of({"--steps", "2", "--checkpoint", path("run")});
  const std::vector<std::string> again = {"--steps",   "4",        "--checkpoint",
                                          path("run"), "--resume", "--quiet"};
  auto other_model = again;
  other_model.insert(other_model.end(), {"--model", "mlp"});
  expect_refusal(finished(other_model), "model = cnn", 1);
  auto other_seed = again;
  other_seed.insert(other_seed.end(), {"--seed", "3"});
  expect_refusal(finished(other_seed), "seed = 0", 1);
  auto other_shards = again;
  other_shards.insert(other_shards.end(), {"--shards", "4"});
  expect_refusal(finished(other_shards), "shards = 8", 1);
}

// With such a learning rate the parameters that begin at zero become denormal.
TEST_F(Train, FlushingDenormalsChangesBitsAndIsTheSameOnAnyNumberOfWorkers) {
  const auto hash = [&](const char* flush, const char* workers) {
    const auto report = report_of(
        {"--steps", "2", "--lr", "1e-38", "--flush-denormal", flush, "--workers", workers});
    EXPECT_EQ(report["flush_denormal"], flush == std::string("on"));
    return report["weights_sha256"];
  };
  const auto kept = hash("off", "2");
  const auto flushed = hash("on", "2");
  EXPECT_NE(flushed, kept);
  EXPECT_EQ(hash("off", "1"), kept);
  EXPECT_EQ(hash("on", "1"), flushed);
}

TEST_F(Train, GoesOnWithTheArithmeticOfTheCheckpointAndRefusesAnother) {
  // One worker: its threads have the cores for themselves.
  report_of({"--steps", "1", "--workers", "1", "--checkpoint", path("run"), "--threads", "2",
             "--onednn", "on", "--flush-denormal", "on", "--deterministic", "off"});
  const std::vector<std::string> again = {"--steps",      "2",         "--workers", "1",
                                          "--checkpoint", path("run"), "--resume"};
  const auto refused_with = [&](const std::string& option, const std::string& value) {
    auto options = again;
    options.insert(options.end(), {option, value, "--quiet"});
    return finished(options);
  };
  expect_refusal(refused_with("--threads", "1"), "threads = 2 and this job has 1", 1);
  expect_refusal(refused_with("--flush-denormal", "off"), "flush_denormal = on", 1);
  const auto resumed = report_of(again);
  EXPECT_EQ(resumed["first_step"], 1);
  EXPECT_EQ(resumed["threads"], 2);
  EXPECT_EQ(resumed["onednn"], true);
  EXPECT_EQ(resumed["flush_denormal"], true);
  EXPECT_EQ(resumed["deterministic"], false);
}

TEST_F(Train, GoesOnWithoutANumberOfWorkersOnAsManyAsTheCheckpointHasShards) {
  report_of({"--steps", "1", "--workers", "1", "--shards", "1", "--checkpoint", path("run")});
  Command command({LOCKSTEP_BINARY, "train", "--model", "cnn", "--data", "synthetic",
                   "--global-batch", "8", "--steps", "2", "--checkpoint", path("run"), "--resume",
                   "--quiet", "--report", path("report.json")},
                  {marker_});
  ASSERT_TRUE(command.finish(seconds(60)));
  ASSERT_EQ(command.exit_code(), 0) << command.err();
  std::ifstream file(path("report.json"));
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["workers"], 1);
  EXPECT_EQ(report["first_step"], 1);
}

// A tree takes one shard per worker, and shm has no native all-reduce.
TEST_F(Train, WhatFallsBackToSharedMemorySendsNothing) {
  for (const auto& [algorithm, shards] : {std::pair{"tree", "8"}, std::pair{"native", "2"}}) {
    const auto report = report_of(
        {"--steps", "1", "--engine", "shm", "--algorithm", algorithm, "--shards", shards});
    EXPECT_EQ(report["bytes_moved_per_step"], 0) << algorithm;
    EXPECT_EQ(report["times_ring"], nullptr) << algorithm;
  }
}

// Workers that something else has started, each with options and variables of its own.
class TrainWorkers : public Train {
 protected:
  struct Own {
    std::string options;
    std::string variables;  // "A=1 B=2"
  };
  Command workers(const Own& leader, const Own& other) {
    const std::string program =
        (fs::path(LOCKSTEP_BINARY).parent_path() / "lockstep-train").string();
    const auto command_of = [&](const Own& own) {
      return "exec env " + own.variables + " " + quoted(program) +
             " --model cnn --data synthetic --workers 2 --global-batch 8 --steps 1 --quiet " +
             own.options + " --report " + quoted(path("report.json"));
    };
    const std::string script =
        "if [ $RANK = 0 ]; then " + command_of(leader) + "; else " + command_of(other) + "; fi";
    Command command({LOCKSTEP_BINARY, "run", "-q", "-n", "2", "--", "/bin/sh", "-c", script},
                    {marker_});
    EXPECT_TRUE(command.finish(seconds(60)));
    return command;
  }
};

// What the libraries say of themselves, not what their variables say.
TEST_F(TrainWorkers, AWorkerWhoseLibrariesUseOtherInstructionsIsAMismatch) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "LibTorch has one set of instructions here";
#endif
  const std::string both =
      "instructions is ATen [A-Z0-9]+.* on rank [01] and ATen [A-Z0-9]+.* on rank [01];";
  const auto aten = workers({}, {"", "ATEN_CPU_CAPABILITY=default"});
  EXPECT_NE(aten.exit_code(), 0);
  EXPECT_THAT(aten.err(), ContainsRegex(both));
  if (aten.err().find("OpenBLAS") == std::string::npos) return;
  const auto blas = workers({"", "OPENBLAS_CORETYPE=Nehalem"}, {"", "OPENBLAS_CORETYPE=Haswell"});
  EXPECT_NE(blas.exit_code(), 0);
  EXPECT_THAT(blas.err(), ContainsRegex(both));
  EXPECT_THAT(blas.err(), ContainsRegex("OpenBLAS Nehalem[^;]* on rank 0"));
  EXPECT_THAT(blas.err(), ContainsRegex("OpenBLAS Haswell[^;]* on rank 1"));
}

TEST_F(TrainWorkers, AnotherArithmeticIsAMismatchAndAnOpenChoiceIsTheLeaders) {
  const auto denormals = workers({"--flush-denormal on", ""}, {"--flush-denormal off", ""});
  EXPECT_NE(denormals.exit_code(), 0);
  EXPECT_THAT(denormals.err(), HasSubstr("flush_denormal is off on rank 1 and on on rank 0"));

  // What a worker would not choose by itself here.
#if defined(__aarch64__)
  constexpr bool kOn = true;
#else
  constexpr bool kOn = false;
#endif
  EXPECT_EQ(workers({kOn ? "--onednn on" : "--onednn off", ""}, {}).exit_code(), 0);
  std::ifstream file(path("report.json"));
  EXPECT_EQ(nlohmann::json::parse(file)["onednn"], kOn);
}

TEST_F(Train, AFullDiskLosesNothing) {
  report_of({"--steps", "2", "--checkpoint", path("run")});
  std::vector<std::string> shell = {
      "/bin/sh", "-c",
      // More than a worker puts into one shared memory, less than a checkpoint.
      "ulimit -f 5800; exec " + quoted(LOCKSTEP_BINARY) +
          " train --model cnn --data synthetic --workers 2 --global-batch 8 --steps 4 --quiet "
          "--resume --checkpoint " +
          quoted(path("run"))};
  Command command(shell, {marker_});
  ASSERT_TRUE(command.finish(seconds(60)));
  expect_refusal(command, "no space", 1);
  EXPECT_EQ(report_of({"--steps", "4", "--checkpoint", path("run"), "--resume"})["first_step"], 2);
}

TEST_F(Train, ALossThatIsNotFiniteEndsTheJobAndKeepsTheCheckpoint) {
  report_of({"--steps", "2", "--checkpoint", path("run"), "--lr", "100000"});
  Command command = finished(
      {"--steps", "500", "--checkpoint", path("run"), "--lr", "100000", "--resume", "--quiet"});
  expect_refusal(command, "lower the learning rate", 2);
}

TEST_F(Train, AHelpTextNamesEveryOption) {
  Command command(std::vector<std::string>{LOCKSTEP_BINARY, "train", "--help"});
  ASSERT_TRUE(command.finish(seconds(10)));
  EXPECT_EQ(command.exit_code(), 0);
  for (const char* option :
       {"--model",        "--data",           "--workers",       "--global-batch", "--accumulate",
        "--epochs",       "--steps",          "--optimizer",     "--lr",           "--scale-lr",
        "--warmup",       "--seed",           "--threads",       "--engine",       "--algorithm",
        "--bucket-bytes", "--checkpoint",     "--resume",        "--report",       "--quiet",
        "--onednn",       "--flush-denormal", "--deterministic", "--overwrite"}) {
    EXPECT_THAT(command.out(), HasSubstr(option));
  }
}

}  // namespace
}  // namespace lockstep::testing
