// Training over MPI: workers that its launcher has started.
#include <signal.h>

#include <thread>

#include "tests/support/mpi_workers.h"
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

class MpiTrain : public Train, public ::testing::WithParamInterface<std::string> {
 protected:
  MpiTrain() {
    char name[] = "/tmp/lockstep-test-XXXXXX";
    mpi_folder_ = ::mkdtemp(name);
  }
  ~MpiTrain() override { fs::remove_all(mpi_folder_); }

  // `launcher`: options of the launcher.
  Command start_mpi(int workers, std::vector<std::string> options,
                    const std::vector<std::string>& launcher = {}) const {
    auto words = mpi_launch(GetParam(), workers, mpi_folder_);
    words.insert(words.end() - 2, launcher.begin(), launcher.end());  // before -n
    words.insert(words.end(), {LOCKSTEP_TRAIN_BINARY, "--workers", std::to_string(workers),
                               "--model", "cnn", "--data", "synthetic", "--global-batch", "8",
                               "--loader-threads", "1", "--checkpoint", "none", "--engine", "mpi"});
    words.insert(words.end(), options.begin(), options.end());
    return Command(words, {marker_, "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"});
  }

  std::string mpi_folder_;  // without spaces, which OpenMPI does not like
};

TEST_P(MpiTrain, GivesTheBitsOfWorkersInSharedMemory) {
  const auto expected = report_of({"--steps", "3"})["weights_sha256"];
  for (const int workers : {2, 3}) {
    Command command = start_mpi(workers, {"--steps", "3", "--quiet", "--report", path("mpi.json")});
    ASSERT_TRUE(command.finish(seconds(100)));
    ASSERT_EQ(command.exit_code(), 0) << command.out() << command.err();
    std::ifstream file(path("mpi.json"));
    const auto report = nlohmann::json::parse(file);
    EXPECT_EQ(report["weights_sha256"], expected) << workers;
    EXPECT_EQ(report["engine"], "mpi");
    EXPECT_EQ(report["workers"], workers);
  }
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

// The worker with this rank; 0 if there is none.
pid_t mpi_worker(const std::string& marker, int rank) {
  for (const pid_t pid : processes_with(marker)) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    const std::string environment(std::istreambuf_iterator<char>(file), {});
    for (const char* variable : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK="}) {
      const std::string wanted = '\0' + (variable + std::to_string(rank)) + '\0';
      if (('\0' + environment).find(wanted) != std::string::npos) return pid;
    }
  }
  return 0;
}

// True if none of the workers is left in time. They end after the launcher.
bool all_gone(const std::string& marker) {
  const auto deadline = seconds(30);
  while (!processes_with(marker).empty()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // nothing to wake us
  }
  return true;
}

// What MPI promises: its launcher ends the others.
TEST_P(MpiTrain, AKilledWorkerEndsTheJobAndNothingIsLeft) {
  Command command = start_mpi(3, {"--steps", "1000000"});
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60))) << command.out() << command.err();
  const pid_t victim = mpi_worker(marker_, 1);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  ASSERT_TRUE(command.finish(seconds(60))) << "the job goes on without rank 1";
  EXPECT_NE(command.exit_code(), 0);
  EXPECT_TRUE(all_gone(marker_));
}

// Where the launcher does not, nobody tells the others: they end at their deadlines, or in MPI, which
// ends a process that was just reading the memory of the killed one. They never hang.
TEST_P(MpiTrain, WorkersThatOutliveAKilledOneEndAtTheirDeadlines) {
  const char* leave_the_others =
      GetParam() == "mpi_mpich" ? "-disable-auto-cleanup" : "--enable-recovery";
  ::setenv("LOCKSTEP_TIMEOUT", "10", 1);
  Command command = start_mpi(3, {"--steps", "1000000"}, {leave_the_others});
  ::unsetenv("LOCKSTEP_TIMEOUT");
  ASSERT_TRUE(command.wait_for("step 1/", 1, seconds(60))) << command.out() << command.err();
  const pid_t victim = mpi_worker(marker_, 1);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  ASSERT_TRUE(command.finish(seconds(60))) << "the others hang";
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(40));
  EXPECT_TRUE(all_gone(marker_));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MpiTrain);
INSTANTIATE_TEST_SUITE_P(Engine, MpiTrain, ::testing::ValuesIn(mpi_engines()),
                         [](const auto& engine) { return engine.param; });

TEST_F(Train, OurOwnLauncherIsNoneForMpiAndTheLineSaysWhichIs) {
  if (mpi_engines().empty()) GTEST_SKIP() << "this build has no MPI";
  Command command = finished({"--engine", "mpi", "--steps", "1", "--quiet"});
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(),
              HasSubstr("no launcher of MPI has started rank 0; start the workers with mpirun or "
                        "srun, or use the engine tcp"));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

}  // namespace
}  // namespace lockstep::testing
