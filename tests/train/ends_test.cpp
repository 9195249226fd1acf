// How `lockstep train` ends when it is told to, or when a worker goes: what is kept, what is said, and the exit code.
#include <csignal>

#include "tests/launcher/terminal.h"
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

using ::testing::Not;

constexpr int kStoppedEarly = 75;

class TrainEnds : public Train {
 protected:
  ~TrainEnds() override { EXPECT_THAT(processes_with(marker_), IsEmpty()); }

  bool has_checkpoint() const { return !checkpoints().empty(); }

  // Two workers, some 10 ms a step, far from the end.
  std::vector<std::string> job(const std::string& steps = "100000") const {
    return {LOCKSTEP_BINARY,    "train", "--model",        "cnn",      "--data",  "synthetic",
            "--workers",        "2",     "--global-batch", "8",        "--steps", steps,
            "--loader-threads", "1",     "--checkpoint",   path("run")};
  }
};

class TrainEndsBySignal : public TrainEnds, public ::testing::WithParamInterface<int> {};

TEST_P(TrainEndsBySignal, WritesACheckpointAndTellsTheSignalByItsCode) {
  Command command(job(), {marker_});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  command.signal(GetParam());
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 128 + GetParam());
  EXPECT_TRUE(has_checkpoint());
  EXPECT_THAT(command.err(),
              HasSubstr(" of 100,000 steps; go on with the same command and --resume"));
}

INSTANTIATE_TEST_SUITE_P(Signals, TrainEndsBySignal, ::testing::Values(SIGHUP, SIGQUIT, SIGTERM));

TEST_F(TrainEnds, AClosedTerminalWritesACheckpoint) {
  OnTerminal terminal(job(), true, {marker_});
  ASSERT_TRUE(terminal.wait_for("step ", 2, seconds(60)));
  EXPECT_EQ(terminal.hang_up(seconds(30)), 128 + SIGHUP);
  EXPECT_TRUE(has_checkpoint());
}

TEST_F(TrainEnds, AClosedPipeStopsTheJobInOrder) {
  auto command_line = job();
  command_line.insert(command_line.end(), {"--data", "synthetic:40"});  // a line for every epoch
  Command command(command_line, {marker_});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  command.close_out();
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), kStoppedEarly);
  EXPECT_THAT(command.err(), HasSubstr("stopped after"));
}

// A full pipe, as behind a terminal after Ctrl-S: nobody takes a line, and the job neither stands still nor is lost.
TEST_F(TrainEnds, AReaderThatHasStoppedReadingCostsNoCheckpoint) {
  std::string line;
  for (const std::string& word : job()) line += " '" + word + "'";
  Command command(
      {"/bin/bash", "-c",
       "(head -c 65536 /dev/zero; " + line + " --checkpoint-every 5; echo $? > '" + path("code") +
           "') | (until [ -e '" + path("reads") + "' ]; do sleep 0.1; done; cat > /dev/null)"},
      {marker_});
  for (const Deadline deadline = seconds(60); !has_checkpoint() && !deadline.expired();)
    ::usleep(10'000);
  EXPECT_TRUE(has_checkpoint());
  const pid_t leader = worker(0);
  ASSERT_GT(leader, 0);
  ::kill(leader, SIGTERM);
  std::ofstream(path("reads")) << "now";
  ASSERT_TRUE(command.finish(seconds(60)));
  int code = 0;
  std::ifstream(path("code")) >> code;
  EXPECT_EQ(code, kStoppedEarly) << command.err();
}

TEST_F(TrainEnds, UnderNohupAHangupEndsNothing) {
  auto command_line = job("60");
  command_line.insert(command_line.begin(), "/usr/bin/nohup");
  Command command(command_line, {marker_});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  for (const pid_t pid : processes_with(marker_)) ::kill(pid, SIGHUP);
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(command.out(), HasSubstr("Trained after 60 steps"));
}

TEST_F(TrainEnds, AJobThatOneWorkerStoppedIsNoSuccess) {
  for (const int rank : {0, 1}) {
    Command command(job(), {marker_});
    ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
    ::kill(worker(rank), rank == 0 ? SIGINT : SIGTERM);
    ASSERT_TRUE(command.finish(seconds(30)));
    EXPECT_EQ(command.exit_code(), kStoppedEarly) << command.err();
    EXPECT_TRUE(has_checkpoint());
    const auto said = lines_of(command.err());
    ASSERT_EQ(said.size(), 1U) << command.err();
    EXPECT_THAT(said[0],
                ::testing::MatchesRegex("lockstep: stopped after [0-9,]+ of 100,000 steps; "
                                        "go on with the same command and --resume .*/run"));
    fs::remove_all(path("run"));
  }
}

// Nobody of the others is to blame, and nobody waits longer than the timeout and the moment in which a worker may still
// end by itself.
TEST_F(TrainEnds, AStoppedLeaderIsNamed) {
  Command command(job(), {marker_, "LOCKSTEP_TIMEOUT=6"});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  const auto begun = std::chrono::steady_clock::now();
  const pid_t leader = worker(0);
  ASSERT_GT(leader, 0);
  ::kill(leader, SIGSTOP);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(kSlowBuild ? 29 : 11));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(),
              HasSubstr("lockstep: rank 0 (pid " + std::to_string(leader) + ") is stopped"));
  EXPECT_THAT(command.err(), Not(HasSubstr("failed first")));
}

TEST_F(TrainEnds, AStoppedWorkerIsNamed) {
  Command command(job(), {marker_, "LOCKSTEP_TIMEOUT=6"});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60)));
  const pid_t victim = worker(1);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGSTOP);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(),
              HasSubstr("lockstep: rank 1 (pid " + std::to_string(victim) + ") is stopped"));
}

}  // namespace
}  // namespace lockstep::testing
