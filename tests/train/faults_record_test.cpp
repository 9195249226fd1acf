// What was used and what was called in jobs through many faults, drawn by a seed.
#include <cstdlib>
#include <map>
#include <set>

#include "tests/train/recorder.h"
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

struct Record {
  int faults = 0;
  std::string said;
};

class FaultsRecord : public Train {
 protected:
  // Steps of some 25 ms. In a hundred of them two faults kill, and so many are slow.
  Record through_faults(const std::string& mode, std::int64_t steps, int seed, int slow = 1) {
    Command command(
        {LOCKSTEP_BINARY, "run", "-n", "4", "--max-restarts", "1000", "--faults",
         "kill=0.014/step,crash=0.006/step,slow=30ms:0.0" + std::to_string(slow) + "/step",
         "--fault-seed", std::to_string(seed), "--", LOCKSTEP_RECORDER_BINARY, mode,
         folder_.string(), std::to_string(steps)},
        {marker_, "LOCKSTEP_LOG=info"});
    EXPECT_TRUE(command.finish(seconds(220)));
    EXPECT_EQ(command.exit_code(), 0) << command.out() << command.err();
    EXPECT_THAT(processes_with(marker_), IsEmpty());
    Record record{0, command.out() + command.err()};
    for (const std::string& line : lines_of(record.said))
      record.faults += line.find("lockstep: fault ") != std::string::npos ? 1 : 0;
    RecordProperty("faults", record.faults);
    const auto uses = std::to_string(-steps / kStepsOfAnEpoch);
    EXPECT_THAT(record.said, HasSubstr("uses " + uses + " " + uses)) << "in committed steps";
    return record;
  }

  void expect_each_sample_once(std::int64_t steps) {
    std::ifstream file(path("samples"), std::ios::binary);
    std::vector<std::int32_t> all(static_cast<std::size_t>(steps * kBatch));
    file.read(reinterpret_cast<char*>(all.data()),
              static_cast<std::streamsize>(all.size() * sizeof(all[0])));
    ASSERT_TRUE(file);
    for (std::size_t first = 0; first < all.size(); first += kSamples) {
      const std::set<std::int32_t> epoch(
          all.begin() + static_cast<std::ptrdiff_t>(first),
          all.begin() + static_cast<std::ptrdiff_t>(first + kSamples));
      EXPECT_EQ(epoch.size(), static_cast<std::size_t>(kSamples)) << "of the epoch at " << first;
      EXPECT_EQ(*epoch.begin(), 1) << "a shard had other samples when it was run again, or none";
      EXPECT_EQ(*epoch.rbegin(), kSamples);
    }
  }

  // Of every process: in order, each step once, except for one that leads from now on; and none of the past for a
  // newcomer. Every step was told to the worker that led.
  void expect_hooks_in_order(std::int64_t steps) {
    std::ifstream file(path("hooks"));
    std::map<pid_t, std::int64_t> last;
    std::set<std::int64_t> seen;
    std::set<std::int64_t> of_leader;
    std::int64_t furthest = -1;
    pid_t pid = 0;
    std::int64_t step = 0;
    bool leader = false;
    bool later = false;
    bool again = false;
    while (file >> pid >> step >> leader >> later >> again) {
      const auto [known, first] = last.try_emplace(pid, step);
      EXPECT_TRUE(!first || !later || step >= furthest - 1) << "a newcomer hears of the past";
      EXPECT_TRUE(first || step == known->second + (again ? 0 : 1))
          << "of process " << pid << ": " << step;
      EXPECT_TRUE(leader || !again);
      known->second = step;
      furthest = std::max(furthest, step);
      seen.insert(step);
      if (leader) of_leader.insert(step);
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), steps);
    EXPECT_EQ(of_leader, seen);
  }
};

TEST_F(FaultsRecord, EverySampleOfEveryEpochIsUsedOnceThroughSeededFaults) {
  constexpr std::int64_t kSteps = 512;
  EXPECT_GE(through_faults("step", kSteps, 7).faults, 8);
  expect_each_sample_once(kSteps);
}

TEST_F(FaultsRecord, HooksComeInOrderThroughSeededFaults) {
  constexpr std::int64_t kSteps = 512;
  EXPECT_GE(through_faults("trainer", kSteps, 8).faults, 8);
  expect_hooks_in_order(kSteps);
}

TEST_F(FaultsRecord, BothThroughFiftyFaults) {
  if (std::getenv("LOCKSTEP_TEST_FULL") == nullptr)
    GTEST_SKIP() << "a long test: set LOCKSTEP_TEST_FULL to run it";
  constexpr std::int64_t kSteps = 2560;
  EXPECT_GE(through_faults("step", kSteps, 9, 3).faults, 50);
  expect_each_sample_once(kSteps);
  fs::remove_all(path("run"));
  EXPECT_GE(through_faults("trainer", kSteps, 10, 3).faults, 50);
  expect_hooks_in_order(kSteps);
}

}  // namespace
}  // namespace lockstep::testing
