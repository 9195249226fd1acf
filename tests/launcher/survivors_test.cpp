// Nothing outlives the launcher, however and whenever it, its keeper or its workers are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Whoever still lives when the launcher has gone is on the way out: looks until nobody is left.
std::vector<pid_t> left_after(const std::string& marker, Deadline deadline) {
  while (true) {
    auto left = processes_with(marker);
    if (left.empty() || deadline.expired()) return left;
  }
}

std::string abstract_sockets() {
  std::ifstream file("/proc/net/unix");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SurvivorsTest, KilledLauncherTakesEverybodyAlong) {
  const std::string marker = make_marker();
  Command command = run_actor(3, {"family"}, {}, {marker});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(20)));
  // Launcher, keeper, and for each worker a child and a daemon.
  EXPECT_EQ(processes_with(marker).size(), 11U);
  command.signal(SIGKILL);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_THAT(left_after(marker, seconds(10)), IsEmpty());
}

TEST(SurvivorsTest, StoppedKeeperWakesUpWhenTheLauncherIsKilled) {
  const std::string marker = make_marker();
  Command command = run_actor(2, {"family"}, {}, {marker});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  ::kill(children_of(command.pid()).at(0), SIGSTOP);
  command.signal(SIGKILL);
  EXPECT_THAT(left_after(marker, seconds(10)), IsEmpty());
}

TEST(SurvivorsTest, KilledKeeperIsNamedAndTheLauncherEndsTheRest) {
  const std::string marker = make_marker();
  Command command = run_actor(3, {"family"}, {}, {marker});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(20)));
  ::kill(children_of(command.pid()).at(0), SIGKILL);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 137);
  EXPECT_THAT(command.err(), HasSubstr("keeper"));
  EXPECT_THAT(processes_with(marker), IsEmpty());
}

TEST(SurvivorsTest, LauncherAndKeeperKilledTogetherTakeTheWorkersAlong) {
  const std::string marker = make_marker();
  Command command = run_actor(4, {"stubborn"}, {}, {marker});
  ASSERT_TRUE(command.wait_for("ready", 4, seconds(20)));
  const pid_t keeper = children_of(command.pid()).at(0);
  command.signal(SIGKILL);
  ::kill(keeper, SIGKILL);
  EXPECT_THAT(left_after(marker, seconds(10)), IsEmpty());
}

TEST(SurvivorsTest, JobInsideAJobEndsWithIt) {
  const std::string marker = make_marker();
  Command command({LOCKSTEP_BINARY, "run", "-n", "2", "--", LOCKSTEP_BINARY, "run", "-n", "2", "--",
                   ACTOR_BINARY, "family"},
                  {marker});
  ASSERT_TRUE(command.wait_for("ready", 4, seconds(20)));
  command.signal(SIGKILL);
  EXPECT_THAT(left_after(marker, seconds(10)), IsEmpty());
}

TEST(SurvivorsTest, WorkersThatKeepForkingCannotEscape) {
  const std::string marker = make_marker();
  Command command = run_actor(3, {"breed"}, {}, {marker});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(20)));
  command.signal(SIGKILL);
  EXPECT_THAT(left_after(marker, seconds(20)), IsEmpty());
}

enum class Victim { kLauncher, kKeeper, kWorker, kAll };

pid_t keeper_of(const Command& command) {
  const auto children = children_of(command.pid());
  return children.empty() ? 0 : children.front();
}

// A worker leads a process group, unlike the orphans that become the keeper's children.
pid_t random_worker(pid_t keeper, std::mt19937& random) {
  std::vector<pid_t> workers;
  for (const pid_t child : keeper > 0 ? children_of(keeper) : std::vector<pid_t>()) {
    if (::getpgid(child) == child) workers.push_back(child);
  }
  return workers.empty() ? 0 : workers[random() % workers.size()];
}

bool kill_now(pid_t pid) {
  return pid > 0 && ::kill(pid, SIGKILL) == 0;
}

// False when there was nobody to kill yet.
bool kill_victim(Victim victim, const Command& command, const std::string& marker,
                 std::mt19937& random) {
  switch (victim) {
    case Victim::kLauncher:
      return kill_now(command.pid());
    case Victim::kKeeper:
      return kill_now(keeper_of(command));
    case Victim::kWorker:
      return kill_now(random_worker(keeper_of(command), random));
    case Victim::kAll: {
      const auto all = processes_with(marker);
      for (const pid_t pid : all) kill_now(pid);
      return !all.empty();
    }
  }
  return false;
}

// One job, in which somebody is killed at one random instant.
void kill_at_random(int round, std::mt19937& random, const std::filesystem::path& folder) {
  const auto victim = static_cast<Victim>(round % 4);
  // When launcher and keeper die together, nobody is left to look for the daemons of workers.
  const char* role = victim == Victim::kAll ? "stubborn" : "family";
  const std::string marker = make_marker();
  Command command = run_actor(3, {role}, {"--grace", "0.2"}, {marker, "TMPDIR=" + folder.string()});
  const auto instant = std::chrono::microseconds(random() % (kSlowBuild ? 300'000 : 40'000));
  ::usleep(static_cast<useconds_t>(instant.count()));
  const bool killed = kill_victim(victim, command, marker, random);
  if (!killed) command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(20))) << "round " << round << ": the launcher hangs";
  EXPECT_EQ(command.exit_code(), killed ? 137 : 143) << round << command.err();
  EXPECT_THAT(left_after(marker, seconds(10)), IsEmpty()) << round;
  const std::string name = "@lockstep-" + std::to_string(command.pid()) + "-";
  EXPECT_THAT(abstract_sockets(), Not(HasSubstr(name))) << round;
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << round;
}

TEST(SurvivorsTest, KillingAnybodyAtAnyInstantLeavesNothingBehind) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  char pattern[] = "/tmp/lockstep-survivors-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern);
  const int rounds = kSlowBuild ? 24 : 200;
  for (int round = 0; round < rounds && !HasFailure(); ++round)
    kill_at_random(round, random, folder);
  for (const auto& item : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_THAT(item.path().filename().string(), Not(HasSubstr("lockstep")));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
