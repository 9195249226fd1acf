#include "control/launch/binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace lockstep::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Cores of two hardware threads each, numbered as Linux does: first all first threads.
std::vector<Core> machine(int nodes, int cores_of_node) {
  std::vector<Core> all;
  const int cores = nodes * cores_of_node;
  for (int core = 0; core < cores; ++core)
    all.push_back({{core, core + cores}, core / cores_of_node});
  return all;
}

TEST(Binding, OnOneNodeTheKernelMovesWorkersAsItLikes) {
  const Binding binding = plan_binding(machine(1, 8), 2, Bind::kAuto);
  EXPECT_THAT(binding.cpus, IsEmpty());
  EXPECT_EQ(binding.text, "not bound: one NUMA node");
  EXPECT_THAT(plan_binding(machine(2, 8), 2, Bind::kNone).cpus, IsEmpty());
}

TEST(Binding, WorkersOfANodeMayUseAllOfIt) {
  const Binding binding = plan_binding(machine(2, 2), 3, Bind::kAuto);
  EXPECT_THAT(binding.cpus, ElementsAre(ElementsAre(0, 4, 1, 5), ElementsAre(0, 4, 1, 5),
                                        ElementsAre(2, 6, 3, 7)));
  EXPECT_EQ(binding.text, "bound to 2 NUMA nodes");
  EXPECT_THAT(plan_binding(machine(4, 1), 2, Bind::kAuto).cpus,
              ElementsAre(ElementsAre(0, 4, 1, 5), ElementsAre(2, 6, 3, 7)));
}

TEST(Binding, ANodeOfWhichAMaskLeavesLittleGetsFewWorkers) {
  std::vector<Core> cores{{{0}, 0}};
  for (int cpu = 8; cpu < 15; ++cpu) cores.push_back({{cpu}, 1});
  const Binding binding = plan_binding(cores, 8, Bind::kAuto);
  ASSERT_EQ(binding.cpus.size(), 8U);
  EXPECT_THAT(binding.cpus[0], ElementsAre(0));
  for (std::size_t worker = 1; worker < 8; ++worker) EXPECT_EQ(binding.cpus[worker].size(), 7U);
  for (const auto& cpus : plan_binding(machine(2, 2), 9, Bind::kAuto).cpus)
    EXPECT_EQ(cpus.size(), 4U) << "more workers than cores";
}

TEST(Binding, BoundToCoresWorkersGetNeighboursWithAllTheirThreads) {
  const Binding binding = plan_binding(machine(1, 8), 2, Bind::kCores);
  EXPECT_THAT(binding.cpus, ElementsAre(ElementsAre(0, 8, 1, 9, 2, 10, 3, 11),
                                        ElementsAre(4, 12, 5, 13, 6, 14, 7, 15)));
  EXPECT_EQ(binding.text, "each bound to 4 cores");
}

TEST(Binding, BoundToCoresAWorkerIsOnOneNodeIfThatCanBe) {
  const auto cores = machine(2, 4);
  for (int workers = 1; workers <= 8; ++workers) {
    const Binding binding = plan_binding(cores, workers, Bind::kCores);
    ASSERT_EQ(binding.cpus.size(), static_cast<std::size_t>(workers));
    std::multiset<int> given;
    for (const auto& cpus : binding.cpus) {
      EXPECT_FALSE(cpus.empty());
      given.insert(cpus.begin(), cpus.end());
      std::set<int> nodes;
      for (const int cpu : cpus) nodes.insert(cpu % 8 / 4);
      EXPECT_EQ(nodes.size(), workers == 1 ? 2U : 1U) << workers << " workers";
    }
    EXPECT_EQ(given.size(), 16U) << "every core is given to one worker";
    EXPECT_EQ(std::set<int>(given.begin(), given.end()).size(), 16U);
  }
  EXPECT_EQ(plan_binding(cores, 3, Bind::kCores).text, "each bound to 2 or 4 cores");
}

// A cgroup may leave one core of a node and many of another.
TEST(Binding, NodesOfDifferentSizesLeaveNoWorkerWithoutACore) {
  const std::vector<Core> cores{{{0}, 0}, {{1}, 1}, {{2}, 1}, {{3}, 1}};
  const Binding binding = plan_binding(cores, 4, Bind::kCores);
  EXPECT_THAT(binding.cpus,
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
}

TEST(Binding, MoreWorkersThanCoresCannotBeBoundToThem) {
  try {
    plan_binding(machine(1, 2), 3, Bind::kCores);
    FAIL();
  } catch (const BadInput& error) {
    EXPECT_THAT(error.what(), HasSubstr("3 workers cannot have a core each"));
  }
}

// What a cgroup, Slurm or taskset has forbidden stays forbidden.
TEST(Binding, TheCoresOfThisProcessAreThoseThatItMayUse) {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::vector<Core> before = cores_of_this_process();
    if (before.empty() || !bind_to({before.back().cpus.back()})) ::_exit(1);
    const std::vector<Core> after = cores_of_this_process();
    const bool right =
        after == std::vector<Core>{{{before.back().cpus.back()}, before.back().node}};
    ::_exit(right ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace lockstep::control
