// When a worker takes the others with it: the launcher names the one that it began with, also when others end sooner.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/process.h"
#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class BlameTest : public ::testing::TestWithParam<const char*> {
 protected:
  Command run(int workers, std::vector<std::string> role,
              std::vector<std::string> options = {}) const {
    std::vector<std::string> arguments = {LOCKSTEP_BINARY,         "run",      "-n",
                                          std::to_string(workers), "--engine", GetParam()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--", JOIN_ACTOR_BINARY});
    arguments.insert(arguments.end(), role.begin(), role.end());
    return Command(arguments, {marker_});
  }

  // By rank: workers are started in this order.
  static pid_t worker(const Command& command, int rank) {
    auto workers = children_of(children_of(command.pid()).at(0));
    std::sort(workers.begin(), workers.end());
    return workers.at(static_cast<std::size_t>(rank));
  }

  std::string marker_ = make_marker();
};

TEST_P(BlameTest, AWorkerThatFailsForAReasonOfItsOwnIsNamedThoughOthersEndFirst) {
  Command command = run(3, {"throw", "1"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 7) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("lockstep: rank 1 (pid "));
  EXPECT_THAT(command.err(), HasSubstr("failed first: it exited with code 7"));
  EXPECT_THAT(lines_of(command.err()), ::testing::Contains("  | a reason of its own"));
}

TEST_P(BlameTest, AWorkerThatEndsInTheMiddleOfTheJobIsNamed) {
  Command command = run(2, {"leave", "1"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), ::testing::ContainsRegex(
                                 "lockstep: rank 0 \\(pid [0-9]+\\) lost rank 1 \\(pid [0-9]+\\), "
                                 "which exited with code 0, and exited with code 1"));
}

TEST_P(BlameTest, AKilledWorkerIsNamed) {
  Command command = run(3, {"meet"});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(30)));
  ::kill(worker(command, 1), SIGKILL);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 137);
  EXPECT_THAT(command.err(), HasSubstr("lockstep: rank 1 (pid "));
}

// Workers that cannot go on without one that left are started again with it, until no restart is left. Then the report
// names the process that was killed.
TEST_P(BlameTest, WorkersThatCannotGoOnWithoutOneThatLeftAreStartedAgain) {
  Command command = run(3, {"meet"}, {"--max-restarts", "3"});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(30)));
  ::kill(worker(command, 1), SIGKILL);
  ASSERT_TRUE(command.wait_for("ready", 6, seconds(60))) << command.err();
  const pid_t killed = worker(command, 1);
  ::kill(killed, SIGKILL);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 137) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("(pid " + std::to_string(killed) +
                                       ") failed first: it was killed by SIGKILL"));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_P(BlameTest, AStoppedWorkerIsNamedAsStopped) {
  Command command = run(3, {"meet"}, {"--timeout", "1"});
  ASSERT_TRUE(command.wait_for("ready", 3, seconds(30)));
  const pid_t leader = worker(command, 0);
  ::kill(leader, SIGSTOP);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(),
              HasSubstr("lockstep: rank 0 (pid " + std::to_string(leader) + ") is stopped"));
  EXPECT_THAT(command.err(), Not(HasSubstr("failed first")));
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Engines, BlameTest, ::testing::Values("shm", "tcp"));

// Every TCP connection of a process ends, as when something on the path resets it.
int cut_connections(pid_t pid) {
  const base::Fd process = base::open_pidfd(pid);
  int cut = 0;
  for (const auto& item :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    const int number = std::stoi(item.path().filename().string());
    const base::Fd copy(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
    int domain = 0;
    socklen_t size = sizeof domain;
    if (!copy || ::getsockopt(copy.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) continue;
    if (domain == AF_INET && ::shutdown(copy.get(), SHUT_RDWR) == 0) ++cut;
  }
  return cut;
}

TEST(CutLinkTest, ALostConnectionIsSaidToBeTheNetworksPerhaps) {
  Command command(
      {LOCKSTEP_BINARY, "run", "-n", "2", "--engine", "tcp", "--", JOIN_ACTOR_BINARY, "meet"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(30)));
  const int cut = cut_connections(children_of(children_of(command.pid()).at(0)).at(0));
  if (cut == 0) GTEST_SKIP() << "this kernel, or this user, takes no descriptors of others";
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), HasSubstr("or the connection to it was cut"));
}

// Two hosts in small: network namespaces, a cable between them, and a program started by hand on each.
constexpr char kTwoHosts[] = R"sh(
unshare -n sleep 60 & far=$!
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add name near type veth peer name far
ip link set far netns $far
ip addr add 10.77.0.1/24 dev near && ip link set near up && ip link set lo up
nsenter -t $far -n sh -c 'ip addr add 10.77.0.2/24 dev far && ip link set far up && ip link set lo up'
export WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 LOCKSTEP_RENDEZVOUS=10.77.0.1:29411 LOCKSTEP_TIMEOUT=2
RANK=1 nsenter -t $far -n "$0" meet & other=$!
RANK=0 "$0" meet & wait $!
code=$?
wait $other; echo "ended with $code and $?"
kill $far
)sh";

TEST(CutLinkTest, ASilentNetworkIsSaidToBeCutPerhaps) {
  Command probe({"/bin/sh", "-c", "unshare -n ip link add name a type veth peer name b"});
  if (!probe.finish(seconds(10)) || probe.exit_code() != 0)
    GTEST_SKIP() << "no network namespaces for this user";
  const std::string secret = (std::filesystem::temp_directory_path() / make_marker()).string();
  {
    const base::Fd file(::open(secret.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::write(file.get(), secret.data(), secret.size()),
              static_cast<ssize_t>(secret.size()));
  }
  Command command({"/usr/bin/unshare", "-n", "/bin/sh", "-c", kTwoHosts, JOIN_ACTOR_BINARY},
                  {"LOCKSTEP_SECRET_FILE=" + secret});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(30))) << command.err();
  Command cut({"/bin/sh", "-c",
               "nsenter -t " + std::to_string(command.pid()) + " -n ip link set near down"});
  ASSERT_TRUE(cut.finish(seconds(10)));
  ASSERT_TRUE(command.finish(seconds(30)));
  std::filesystem::remove(secret);
  EXPECT_THAT(command.out(), HasSubstr("ended with 1 and 1"));
  EXPECT_EQ(count(command.err(), "is the network between the hosts cut?"), 2) << command.err();
}

}  // namespace
}  // namespace lockstep::testing
