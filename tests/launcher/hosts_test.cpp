// `lockstep run --hosts`: by a remote shell that is none, which is fast, and by ssh to this machine, which is real.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "control/launch/preparation.h"
#include "control/launch/process_table.h"
#include "control/rendezvous/sockets.h"
#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Words = std::vector<std::string>;

// Of a process that ends meanwhile: nothing. An iterator over the file would throw then.
std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// ssh does not pass the test's marker on, but the program's path is in every command line.
std::vector<pid_t> processes_of(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : control::read_process_table()) {
    if (entry.dead || entry.pid == ::getpid()) continue;
    const std::string line = content("/proc/" + std::to_string(entry.pid) + "/cmdline");
    if (line.find(text) != std::string::npos) found.push_back(entry.pid);
  }
  return found;
}

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/lockstep-hosts-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    actor_ = folder_ + "/actor";
    std::filesystem::create_symlink(ACTOR_BINARY, actor_);
    // A shell that runs the command here. "dead" cannot be reached, "bare" has no lockstep, "idle" does nothing, "three"
    // and "four" fail with that code, "hang" never starts anything and never ends, "stuck" does not end after the command.
    shell_ = folder_ + "/shell";
    std::ofstream(shell_) << "#!/bin/sh\n"
                             "[ $1 = dead ] && { echo no route to dead >&2; exit 255; }\n"
                             "[ $1 = bare ] && exec sh -c 'exec /none/lockstep'\n"
                             "[ $1 = idle ] && exit 0\n"
                             "[ $1 = three ] && exit 3\n"
                             "[ $1 = four ] && exit 4\n"
                             "trap '' INT TERM HUP\n"
                             "[ $1 = stuck ] && { sh -c \"$2\"; >${0%/*}/hangs; }\n"
                             "[ $1 = hang ] && >${0%/*}/hangs\n"
                             "case $1 in stuck|hang) while :; do sleep 100; done;; esac\n"
                             "trap - INT TERM HUP\n"
                             "exec sh -c \"$2\"\n";
    ::chmod(shell_.c_str(), 0755);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Command run(const std::string& hosts, const Words& program, const Words& options = {}) const {
    Words words = {LOCKSTEP_BINARY, "run", "--ssh", shell_, "--hosts", hosts};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    words.insert(words.end(), program.begin(), program.end());
    return Command(words);
  }

  std::vector<pid_t> left(Deadline deadline) const {
    while (true) {
      auto left = processes_of(folder_ + "/actor");
      if (left.empty() || deadline.expired()) return left;
    }
  }

  // The shell of "hang" or "stuck" has come to where it hangs.
  bool shell_hangs(Deadline deadline) const {
    while (!std::filesystem::exists(folder_ + "/hangs")) {
      if (deadline.expired()) return false;
    }
    return true;
  }

  std::string folder_;
  std::string actor_;
  std::string shell_;
};

TEST_F(HostsTest, WorkersOfAllHostsJoinOneWorld) {
  Command command = run("127.0.0.1:2,second:1,third:1", {JOIN_ACTOR_BINARY});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_EQ(command.err(), "");
  EXPECT_EQ(count(command.out(), "of 4 sum 10"), 4) << command.out();
  EXPECT_THAT(command.out(), HasSubstr("[3] joined lockstep rank 3 of 4"));
}

TEST_F(HostsTest, OptionsAndWordsReachEveryHostAsTheyAre) {
  Command command = run("127.0.0.1,second", {actor_, "env", "A", "RANK", "OMP_NUM_THREADS"},
                        {"-n", "1", "--env", "A=it's \"$HOME\" *", "--threads", "3"});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(count(command.out(), "A=it's \"$HOME\" *\n"), 2) << command.out() << command.err();
  EXPECT_THAT(command.out(), HasSubstr("[1] RANK=1"));
  EXPECT_EQ(count(command.out(), "OMP_NUM_THREADS=3"), 2);
}

TEST_F(HostsTest, OneHostNeedsNoMeeting) {
  Command command = run("somewhere:2", {actor_, "env", "WORLD_SIZE", "LOCAL_WORLD_SIZE"});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_EQ(count(command.out(), "LOCAL_WORLD_SIZE=2"), 2);
}

TEST_F(HostsTest, FailureIsToldOnceAndItsCodeIsOurs) {
  Command command = run("127.0.0.1:1,second:2", {actor_, "exit", "2", "7"});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 7);
  EXPECT_EQ(count(command.err(), "failed first"), 1) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("rank 2 on node 1"));
  EXPECT_EQ(count(command.err(), "  | the reason"), 1);
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

// Orders of node 0 may come together with the start.
TEST_F(HostsTest, WorkersThatFailAtOnceAreNoBugOfOurs) {
  for (int i = 0; i < 12; ++i) {
    Command command = run("127.0.0.1:1,second:1", {"sh", "-c", "exit 7"});
    ASSERT_TRUE(command.finish(seconds(60)));
    EXPECT_EQ(command.exit_code(), 7) << command.err();
    EXPECT_THAT(command.err(), Not(HasSubstr("bug"))) << i;
  }
}

TEST_F(HostsTest, SignalsReachWorkersOfEveryHost) {
  Command command = run("127.0.0.1:1,second:1", {actor_, "catch"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  command.signal(SIGUSR1);
  ASSERT_TRUE(command.wait_for("caught 10", 2, seconds(20)));
  command.signal(SIGINT);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), 130);
  EXPECT_EQ(count(command.out(), "caught 2\n"), 2);
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(HostsTest, HostThatCannotBeReachedEndsEverythingInTwoLines) {
  Command command = run("127.0.0.1:1,dead:1", {actor_, "wait"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 1);
  EXPECT_THAT(command.err(), HasSubstr("no route to dead\n"));  // the shell's own
  EXPECT_THAT(command.err(), HasSubstr("lockstep: dead could not be reached"));
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(HostsTest, ShellThatStartsNothingIsNoSuccess) {
  for (const char* const hosts : {"idle:1", "idle:1,idle:1", "127.0.0.1:1,idle:1"}) {
    Command command = run(hosts, {actor_, "wait"});
    ASSERT_TRUE(command.finish(seconds(30)));
    EXPECT_EQ(command.exit_code(), 1) << hosts;
    EXPECT_THAT(command.err(), HasSubstr("ended without starting `lockstep` there"));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
  }
}

TEST_F(HostsTest, ShellsThatAllFailAreToldInOneLineForEachCause) {
  Command apart = run("three:1,four:1", {actor_, "wait"});
  ASSERT_TRUE(apart.finish(seconds(30)));
  EXPECT_EQ(apart.exit_code(), 1);
  EXPECT_THAT(apart.err(), HasSubstr("lockstep: the remote shell of three exited with code 3"));
  EXPECT_THAT(apart.err(), HasSubstr("lockstep: the remote shell of four exited with code 4"));
  EXPECT_EQ(lines_of(apart.err()).size(), 2U) << apart.err();

  shell_ = "/bin/false";
  Command alike = run("a:1,b:1", {"true"});
  ASSERT_TRUE(alike.finish(seconds(30)));
  EXPECT_EQ(alike.exit_code(), 1);
  EXPECT_THAT(alike.err(), HasSubstr("the remote shells of a and b exited with code 1"));
  EXPECT_THAT(alike.err(), HasSubstr("`/bin/false a true`"));
  EXPECT_EQ(lines_of(alike.err()).size(), 1U) << alike.err();
}

TEST_F(HostsTest, ShellThatNeverStartsAnythingIsKilledSoonAfterCtrlC) {
  for (const char* const hosts : {"hang:1", "hang:1,127.0.0.1:1", "127.0.0.1:1,hang:1"}) {
    SCOPED_TRACE(hosts);
    Command command = run(hosts, {actor_, "wait"}, {"--grace", "30"});
    ASSERT_TRUE(shell_hangs(seconds(20)));
    command.signal(SIGINT);
    ASSERT_TRUE(command.finish(seconds(15)));
    EXPECT_EQ(command.exit_code(), 130);
    EXPECT_THAT(command.err(), HasSubstr("the remote shell of hang did not end and was killed; "
                                         "processes may still run there"));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
    std::filesystem::remove(folder_ + "/hangs");
  }
}

TEST_F(HostsTest, ShellThatOutlivesItsLauncherIsKilledAfterTheGrace) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Command command = run("127.0.0.1:1,stuck:1", {actor_, "catch"}, {"--grace", "1"});
    ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
    command.signal(signal);
    ASSERT_TRUE(shell_hangs(seconds(20)));
    ASSERT_TRUE(command.finish(seconds(15)));
    EXPECT_EQ(command.exit_code(), 128 + signal);
    EXPECT_THAT(command.err(), HasSubstr("the remote shell of stuck did not end and was killed"));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
    std::filesystem::remove(folder_ + "/hangs");
  }
}

TEST_F(HostsTest, ShellsThatHangEndAtTheTimeout) {
  for (const char* const hosts : {"hang:1,hang:1", "hang:1,127.0.0.1:1"}) {
    SCOPED_TRACE(hosts);
    Command command = run(hosts, {actor_, "wait"}, {"--timeout", "2"});
    ASSERT_TRUE(command.finish(seconds(15)));
    EXPECT_EQ(command.exit_code(), 1);
    EXPECT_THAT(command.err(), HasSubstr("not started `lockstep` in time"));
    EXPECT_THAT(command.err(), HasSubstr(" hang true` must work without a password"));
    EXPECT_THAT(left(seconds(10)), IsEmpty());
  }
}

TEST_F(HostsTest, KilledShellIsNotCalledALauncher) {
  Command command = run("127.0.0.1:1,second:1", {actor_, "wait"}, {"--grace", "1"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(20)));
  const auto shells = children_of(children_of(command.pid()).at(0));
  ASSERT_EQ(shells.size(), 2U);
  ::kill(shells[1], SIGKILL);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_NE(command.exit_code(), 0);
  EXPECT_THAT(command.err(), HasSubstr("the remote shell of second was killed by SIGKILL"));
  EXPECT_THAT(command.err(), Not(HasSubstr("the launcher on")));
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(HostsTest, OptionsAreCheckedBeforeAnyHostIsAsked) {
  const std::pair<Words, const char*> cases[] = {
      {{"--rendezvous", std::string(10'000, 'x')}, "has no port"},
      {{"--rendezvous", "::1"}, "write [::1]:PORT"},
      {{"--timeout", "0"}, "--timeout 0 is not possible"}};
  for (const auto& [options, text] : cases) {
    Command command = run("three:1,four:1", {actor_, "wait"}, options);
    ASSERT_TRUE(command.finish(seconds(20)));
    EXPECT_EQ(command.exit_code(), 2);
    EXPECT_THAT(command.err(), HasSubstr(text));
    EXPECT_EQ(lines_of(command.err()).size(), 1U) << command.err();
    EXPECT_LT(command.err().size(), 300U);
  }
}

TEST_F(HostsTest, OptionsThatNeedOthersAreRefusedWithoutThem) {
  const std::pair<Words, const char*> cases[] = {
      {{"--hosts", ""}, "--hosts: the list is empty"},
      {{"-n", "1", "--nodes", "2"}, "--nodes requires --node-rank"},
      {{"-n", "1", "--node-rank", "0"}, "--node-rank requires --nodes"},
      {{"-n", "1", "--secret-file", "f"}, "--secret-file requires --nodes"},
      {{"-n", "1", "--rendezvous", "a:1"}, "--rendezvous is where several hosts meet"}};
  for (const auto& [options, text] : cases) {
    Words words = {LOCKSTEP_BINARY, "run"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "true"});
    Command command(words);
    ASSERT_TRUE(command.finish(seconds(10)));
    EXPECT_EQ(command.exit_code(), 2) << text;
    EXPECT_THAT(command.err(), HasSubstr(text));
  }
}

TEST_F(HostsTest, HostWithoutLockstepIsNamed) {
  Command command = run("127.0.0.1:1,bare:1", {actor_, "wait"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 127);
  EXPECT_THAT(command.err(),
              HasSubstr("lockstep: `lockstep` could not be started on bare (code 127)"));
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(HostsTest, PortThatIsTakenIsNamed) {
  const auto listener = control::listen_tcp("127.0.0.1", 0);
  const std::string where = "127.0.0.1:" + std::to_string(listener.address.port);
  Command command = run("127.0.0.1:1,second:1", {actor_, "wait"}, {"--rendezvous", where});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 2);
  EXPECT_THAT(command.err(), HasSubstr("Address already in use; choose another port"));
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(HostsTest, MissingRemoteShellIsOneLine) {
  shell_ = "/none/ssh";
  Command command = run("127.0.0.1:1,second:1", {actor_, "wait"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 2);
  EXPECT_THAT(command.err(), HasSubstr("--hosts needs a remote shell"));
  EXPECT_EQ(lines_of(command.err()).size(), 1U);
}

// ---- ssh ------------------------------------------------------------------------------------------------------------

// An ssh server on the loopback, as this user, with keys of its own.
class SshTest : public HostsTest {
 protected:
  void SetUp() override {
    HostsTest::SetUp();
    char pattern[] = "/tmp/lockstep-sshd-XXXXXX";
    keys_ = ::mkdtemp(pattern);
    if (::access("/usr/sbin/sshd", X_OK) != 0 || ::access("/usr/bin/ssh", X_OK) != 0)
      GTEST_SKIP() << "no ssh here: install openssh-server and openssh-client";
    if (::geteuid() == 0) ::mkdir("/run/sshd", 0755);  // what its package makes at boot
    for (const char* key : {"host", "user"}) {
      Command made(
          {"/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys_ + "/" + key});
      ASSERT_TRUE(made.finish(seconds(20)));
    }
    port_ = control::free_port();
    std::ofstream(keys_ + "/config")
        << "ListenAddress 127.0.0.1\nPort " << port_ << "\nHostKey " << keys_
        << "/host\nAuthorizedKeysFile " << keys_
        << "/user.pub\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n"
           "PasswordAuthentication no\n";
    const std::string host_key = content(keys_ + "/host.pub");
    std::ofstream known(keys_ + "/known");
    for (const char* name : {"127.0.0.1", "localhost"})
      known << "[" << name << "]:" << port_ << " " << host_key;
    known.close();
    server_.emplace(Words{"/usr/sbin/sshd", "-D", "-e", "-f", keys_ + "/config"});
    if (!server_->wait_for_in_err("Server listening", seconds(10)))
      GTEST_SKIP() << "sshd does not start here: " << server_->err();
    shell_ = "/usr/bin/ssh -T -F none -p " + std::to_string(port_) + " -i " + keys_ +
             "/user -o UserKnownHostsFile=" + keys_ +
             "/known -o BatchMode=yes -o ConnectTimeout=10";
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(keys_);
    HostsTest::TearDown();
  }

  std::string keys_;
  int port_ = 0;
  std::optional<Command> server_;
};

TEST_F(SshTest, WorkersOfAllHostsJoinOneWorld) {
  Command command = run("127.0.0.1:2,localhost:1", {JOIN_ACTOR_BINARY});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_EQ(count(command.out(), "of 3 sum 6"), 3) << command.out();
}

TEST_F(SshTest, CodesAndSignalsComeThrough) {
  Command failing = run("127.0.0.1:1,localhost:1", {actor_, "exit", "1", "9"});
  ASSERT_TRUE(failing.finish(seconds(60)));
  EXPECT_EQ(failing.exit_code(), 9) << failing.err();
  Command command = run("127.0.0.1:1,localhost:1", {actor_, "catch"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(30)));
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 143);
  EXPECT_EQ(count(command.out(), "caught 15"), 2) << command.out();
  EXPECT_THAT(left(seconds(10)), IsEmpty());
}

TEST_F(SshTest, SecretIsInNoCommandLineAndNoVariable) {
  Command command = run("127.0.0.1:1,localhost:1", {actor_, "wait"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(30)));
  const auto all = processes_of(actor_);
  EXPECT_GE(all.size(),
            8U);  // two shells, launchers, keepers and workers, and our launcher and keeper
  const std::regex secret("[0-9a-f]{64}");
  for (const pid_t pid : all) {
    for (const char* file : {"cmdline", "environ"}) {
      const std::string text = content("/proc/" + std::to_string(pid) + "/" + file);
      EXPECT_FALSE(std::regex_search(text, secret)) << file;
    }
  }
}

TEST_F(SshTest, NothingOutlivesAKilledCoordinator) {
  Command command = run("127.0.0.1:1,localhost:1", {actor_, "family"}, {"--grace", "1"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(30)));
  command.signal(SIGKILL);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_THAT(left(seconds(20)), IsEmpty());
}

TEST_F(SshTest, KilledSshEndsTheJobOnAllHosts) {
  Command command = run("127.0.0.1:1,localhost:1", {actor_, "family"}, {"--grace", "1"});
  ASSERT_TRUE(command.wait_for("ready", 2, seconds(30)));
  const auto shells = children_of(children_of(command.pid()).at(0));
  ASSERT_EQ(shells.size(), 2U);
  ::kill(shells[1], SIGKILL);
  ASSERT_TRUE(command.finish(seconds(40)));
  EXPECT_NE(command.exit_code(), 0);
  EXPECT_THAT(command.err(), HasSubstr("lockstep: "));
  EXPECT_THAT(left(seconds(20)), IsEmpty());
}

TEST_F(SshTest, ClosedPortIsAHostThatCannotBeReached) {
  server_.reset();
  Command command = run("127.0.0.1:1,localhost:1", {actor_, "wait"});
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_NE(command.exit_code(), 0);
  EXPECT_THAT(command.err(), HasSubstr("could not be reached"));
}

}  // namespace
}  // namespace lockstep::testing
