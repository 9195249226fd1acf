// How workers are started, and what a wrong start looks like.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(StartTest, WorkersGetTheEnvironmentOfTorchrun) {
  Command command =
      run_actor(2,
                {"env", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR",
                 "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS", "MODE", "LOCKSTEP_TIMEOUT"},
                {"--env", "MODE=fast", "--threads", "2", "--timeout", "33"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_THAT(lines_of(command.out()),
              IsSupersetOf({"[0] RANK=0", "[1] RANK=1", "[1] LOCAL_RANK=1", "[1] WORLD_SIZE=2",
                            "[0] MASTER_ADDR=127.0.0.1", "[0] TORCHELASTIC_USE_AGENT_STORE=False",
                            "[0] OMP_NUM_THREADS=2", "[1] MODE=fast", "[0] LOCKSTEP_TIMEOUT=33"}));
}

TEST(StartTest, OnlyStandardStreamsAndTheLaunchersTwoDescriptorsAreOpenInAWorker) {
  // A descriptor that we were started with must not leak through either.
  const base::Fd leak(::open("/dev/zero", O_RDONLY));
  Command command = run_actor(1, {"descriptors"});
  ASSERT_TRUE(command.finish(seconds(20)));
  const auto lines = lines_of(command.out());
  EXPECT_THAT(lines, SizeIs(5)) << command.out();
  EXPECT_THAT(lines, Contains(HasSubstr("memfd:lockstep-secret")));
  EXPECT_THAT(lines, Contains(HasSubstr("socket:")));  // for losses
  EXPECT_THAT(lines, Contains("[0] fd 0 /dev/null"));
}

TEST(StartTest, SecretShowsNeitherInArgumentsNorInTheEnvironment) {
  Command command(
      {LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/sh", "-c",
       "s=$(od -An -tx1 -v /proc/self/fd/$LOCKSTEP_SECRET_FD | tr -d ' \\n'); echo secret $s; "
       "tr '\\0' '\\n' < /proc/self/environ; tr '\\0' '\\n' < /proc/$PPID/cmdline"});
  ASSERT_TRUE(command.finish(seconds(20)));
  const std::string& out = command.out();
  const auto begin = out.find("secret ") + 7;
  const std::string secret = out.substr(begin, out.find('\n', begin) - begin);
  ASSERT_EQ(secret.size(), 64U) << out;
  EXPECT_EQ(count(out, secret), 1);
}

TEST(StartTest, FirstWorkerReadsStandardInputAndTheOthersNone) {
  Command command({"/bin/sh", "-c",
                   "echo 12345 | " + quoted(LOCKSTEP_BINARY) + " run -n 2 -- " +
                       quoted(ACTOR_BINARY) + " input"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_THAT(lines_of(command.out()), IsSupersetOf({"[0] input 6", "[1] input 0"}));
}

TEST(StartTest, ArgumentsArriveAsTheyAre) {
  Command command(
      {LOCKSTEP_BINARY, "run", "-n", "1", "printf", "%s;", "a b", "", "-n", "--", "$HOME"});
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.out(), "[0] a b;;-n;--;$HOME;\n");
}

TEST(StartTest, MoreWorkersThanCoresStart) {
  const int workers = kSlowBuild ? 32 : 256;
  Command command = run_actor(workers, {"env", "RANK"});
  ASSERT_TRUE(command.finish(seconds(50)));
  EXPECT_EQ(command.exit_code(), 0);
  EXPECT_THAT(lines_of(command.out()), SizeIs(static_cast<std::size_t>(workers)));
}

struct Wrong {
  std::vector<std::string> arguments;
  int exit_code;
  std::string text;
};

class BadInputTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(BadInputTest, EndsInOneLineThatSaysWhatToDo) {
  std::vector<std::string> arguments = {LOCKSTEP_BINARY};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  Command command(arguments);
  ASSERT_TRUE(command.finish(seconds(20)));
  EXPECT_EQ(command.exit_code(), GetParam().exit_code);
  EXPECT_EQ(command.out(), "");
  EXPECT_THAT(lines_of(command.err()), SizeIs(1)) << command.err();
  EXPECT_THAT(command.err(), StartsWith("lockstep: "));
  EXPECT_THAT(command.err(), HasSubstr(GetParam().text));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadInputTest,
    ::testing::Values(
        Wrong{{}, 2, "no command"}, Wrong{{"walk"}, 2, "walk"},
        Wrong{{"run", "-n", "0", "true"}, 2, "-n 0"},
        Wrong{{"run", "-n", "4097", "true"}, 2, "4096"}, Wrong{{"run", "-n", "x", "true"}, 2, "x"},
        Wrong{{"run", "true"}, 2, "add -n"}, Wrong{{"run", "-n", "2"}, 2, "no program"},
        Wrong{{"run", "-n", "2", "--"}, 2, "no program"},
        Wrong{{"run", "-n", "2", "--", ""}, 2, "no program"},
        Wrong{{"run", "-n", "2", "--wat", "true"}, 2, "--wat"},
        Wrong{{"run", "-n", "2", "--env", "A", "true"}, 2, "KEY=VALUE"},
        Wrong{{"run", "-n", "2", "--env", "RANK=1", "true"}, 2, "RANK"},
        Wrong{{"run", "-n", "2", "--log-dir", "/proc/nope", "true"}, 2, "/proc/nope"},
        Wrong{{"run", "-n", "2", "--threads", "0", "true"}, 2, "--threads"},
        Wrong{{"run", "-n", "2", "--grace", "-1", "true"}, 2, "--grace"},
        Wrong{{"run", "-n", "2", "--min-workers", "3", "true"}, 2, "--min-workers 3"},
        Wrong{{"run", "-n", "2", "--max-restarts", "-1", "true"}, 2, "--max-restarts"},
        Wrong{{"run", "--hosts", "a:1,b:1", "-n", "1:2", "true"}, 2, "works on one host so far"},
        Wrong{{"run", "-n", "2", "--", "./not-there"}, 127, "./not-there"},
        Wrong{{"run", "-n", "2", "--", "not-there-at-all"}, 127, "not-there-at-all"},
        Wrong{{"run", "-n", "2", "--", "/etc/passwd"}, 126, "chmod +x"},
        Wrong{{"run", "-n", "2", "--", "/etc"}, 126, "folder"},
        Wrong{{"doctor", "--wat"}, 2, "--wat"}));

TEST(StartTest, FileThatIsNoProgramIsNamedOnce) {
  char path[] = "/tmp/lockstep-noexec-XXXXXX";
  {
    const base::Fd file(::mkstemp(path));
    ASSERT_GT(::write(file.get(), "\x01\x02 no program", 13), 0);
    ::fchmod(file.get(), 0755);
  }
  Command command({LOCKSTEP_BINARY, "run", "-n", "3", "--", path});
  ASSERT_TRUE(command.finish(seconds(20)));
  std::filesystem::remove(path);
  EXPECT_EQ(command.exit_code(), 126);
  EXPECT_THAT(lines_of(command.err()), SizeIs(1)) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("#!"));
}

TEST(StartTest, HelpAndVersionGoToStandardOutput) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"--help"},
                                                                     {"--version"},
                                                                     {"run", "--help"},
                                                                     {"doctor", "--help"},
                                                                     {"jobs", "--help"},
                                                                     {"resize", "--help"},
                                                                     {"stop", "--help"},
                                                                     {"jobs"},
                                                                     {"doctor"},
                                                                     {"doctor", "--json"}}) {
    std::vector<std::string> all = {LOCKSTEP_BINARY};
    all.insert(all.end(), arguments.begin(), arguments.end());
    Command command(all);
    ASSERT_TRUE(command.finish(seconds(20)));
    EXPECT_EQ(command.exit_code(), 0) << arguments.front();
    EXPECT_NE(command.out(), "");
    EXPECT_EQ(command.err(), "");
  }
}

// The shortest of several: what else runs on the machine can only make it longer.
std::chrono::duration<double, std::milli> shortest_time(const std::vector<std::string>& arguments) {
  std::chrono::duration<double, std::milli> shortest = std::chrono::seconds(20);
  for (int i = 0; i < 21; ++i) {
    const auto start = std::chrono::steady_clock::now();
    Command command(arguments);
    EXPECT_TRUE(command.finish(seconds(20)));
    shortest = std::min<decltype(shortest)>(shortest, std::chrono::steady_clock::now() - start);
  }
  return shortest;
}

TEST(StartTest, StartingANoOpCostsLessThan50MillisecondsMoreThanTheShell) {
  const auto shell = shortest_time({"/bin/sh", "-c", "/bin/true; exit 0"});
  const auto launcher = shortest_time({LOCKSTEP_BINARY, "run", "-n", "1", "--", "/bin/true"});
  const double extra = (launcher - shell).count();
  std::printf("shell %.1f ms, lockstep run %.1f ms: %.1f ms more\n", shell.count(),
              launcher.count(), extra);
  RecordProperty("extra_ms", std::to_string(extra));
  EXPECT_LT(extra, kSlowBuild ? 1000 : 50);
}

}  // namespace
}  // namespace lockstep::testing
