// Other launchers start workers that join: MPICH's and OpenMPI's mpirun, and torchrun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/files.h"
#include "control/launch/preparation.h"
#include "tests/launcher/command.h"
#include "tests/support/python.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr const char* kMpich = "/usr/bin/mpiexec.mpich";
constexpr const char* kOpenMpi = "/usr/bin/mpirun.openmpi";

Words openmpi(const Words& more) {
  Words words = {kOpenMpi, "--oversubscribe"};
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// OpenMPI wants more of a container than some give: then there is nothing to test.
bool openmpi_works() {
  if (!base::exists(kOpenMpi)) return false;
  Command command(openmpi({"-n", "2", "/bin/true"}));
  return command.finish(seconds(60)) && command.exit_code() == 0;
}

void expect_world(Command& command, const std::string& launcher) {
  ASSERT_TRUE(command.finish(seconds(90)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(command.out(), HasSubstr("joined " + launcher + " rank 0 of 2 sum 3"));
  EXPECT_THAT(command.out(), HasSubstr("joined " + launcher + " rank 1 of 2 sum 3"));
}

TEST(OtherLaunchersTest, WorkersOfMpichFindEachOther) {
  if (!base::exists(kMpich)) GTEST_SKIP() << "no MPICH here: install mpich";
  Command command({kMpich, "-n", "2", JOIN_ACTOR_BINARY});
  expect_world(command, "mpich");
  Command wrapped({kMpich, "-n", "2", "/bin/sh", "-c", quoted(JOIN_ACTOR_BINARY) + "; exit $?"});
  expect_world(wrapped, "mpich");
}

TEST(OtherLaunchersTest, WorkersOfOpenMpiFindEachOther) {
  if (!openmpi_works()) GTEST_SKIP() << "no OpenMPI that works here: install openmpi-bin";
  Command command(openmpi({"-n", "2", JOIN_ACTOR_BINARY}));
  expect_world(command, "openmpi");
}

TEST(OtherLaunchersTest, WorkersOfTorchrunFindEachOther) {
  if (kSlowBuild) GTEST_SKIP() << "a sanitizer sees nothing of torchrun";
  if (!base::exists("/usr/bin/torchrun")) GTEST_SKIP() << "no torchrun: apt install python3-torch";
  Command command({"/usr/bin/torchrun", "--no_python", "-r", "1", "-t", "1", "--nproc_per_node",
                   "2", "--master_port", std::to_string(control::free_port()), JOIN_ACTOR_BINARY});
  expect_world(command, "torchrun");
}

// As on a cluster: the scheduler starts one launcher on each host.
TEST(OtherLaunchersTest, OurLaunchersMeetInsideMpirun) {
  if (!base::exists(kMpich)) GTEST_SKIP() << "no MPICH here: install mpich";
  char pattern[] = "/tmp/lockstep-secret-XXXXXX";
  const int file = ::mkstemp(pattern);  // of mode 600
  ASSERT_EQ(::write(file, "0123456789abcdef", 16), 16);
  ::close(file);
  const std::string command_line = "exec " + quoted(LOCKSTEP_BINARY) +
                                   " run --nodes $PMI_SIZE --node-rank $PMI_RANK --rendezvous " +
                                   "127.0.0.1:" + std::to_string(control::free_port()) +
                                   " --secret-file " + pattern + " -n 1 -- " +
                                   quoted(JOIN_ACTOR_BINARY);
  Command command({kMpich, "-n", "2", "/bin/sh", "-c", command_line});
  expect_world(command, "lockstep");
  ::unlink(pattern);
}

}  // namespace
}  // namespace lockstep::testing
