#include "app/run_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include "app/hosts/arguments.h"

namespace lockstep::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    parse_run_arguments(arguments);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SplitCommandTest, CommandBeginsAfterTheTwoDashes) {
  const auto split = split_command({"-n", "2", "--", "./a", "--", "-x"});
  EXPECT_THAT(split.own, ElementsAre("-n", "2"));
  EXPECT_THAT(split.command, ElementsAre("./a", "--", "-x"));
}

TEST(SplitCommandTest, CommandBeginsAtTheFirstWordThatIsNoValue) {
  const auto split =
      split_command({"-n", "2", "--device", "cuda", "--env=A=b", "--quiet", "./a", "-n", "5"});
  EXPECT_THAT(split.own, ElementsAre("-n", "2", "--device", "cuda", "--env=A=b", "--quiet"));
  EXPECT_THAT(split.command, ElementsAre("./a", "-n", "5"));
}

TEST(SplitCommandTest, NothingIsNoCommand) {
  EXPECT_THAT(split_command({}).command, IsEmpty());
  EXPECT_THAT(split_command({"-n"}).own, ElementsAre("-n"));
  EXPECT_THAT(split_command({"-n", "2", "--"}).command, IsEmpty());
}

TEST(RunArgumentsTest, AllOptionsArrive) {
  const auto options = parse_run_arguments(
      {"-n",        "4",       "--env",       "A=1",      "-e",  "B=2",      "--log-dir", "logs",
       "--timeout", "20",      "--threads=3", "--engine", "tcp", "--device", "cuda",      "--grace",
       "0.5",       "--quiet", "--report",    "report",   "--",  "./prog",   "--flag"});
  EXPECT_EQ(options.workers, 4);
  EXPECT_THAT(options.variables, ElementsAre(Pair("A", "1"), Pair("B", "2")));
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.report, "report");
  EXPECT_EQ(options.timeout_s, 20);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.engine, "tcp");
  EXPECT_EQ(options.device, DeviceKind::kCuda);
  EXPECT_EQ(options.grace, std::chrono::milliseconds(500));
  EXPECT_TRUE(options.quiet);
  EXPECT_THAT(options.command, ElementsAre("./prog", "--flag"));
}

TEST(RunArgumentsTest, OptionsOfReplacementArrive) {
  const auto options = parse_run_arguments(
      {"-n", "4", "--min-workers", "2", "--max-restarts", "5", "--step-timeout", "2.5", "./prog"});
  EXPECT_EQ(options.min_workers, 2);
  EXPECT_EQ(options.max_restarts, 5);
  EXPECT_EQ(options.step_timeout_s, 2.5);
  EXPECT_THAT(options.command, ElementsAre("./prog"));
  EXPECT_FALSE(control::elastic(parse_run_arguments({"-n", "1", "./prog"})));
  EXPECT_THAT(refusal({"-n", "2", "--step-timeout", "5", "./prog"}), HasSubstr("--max-restarts"));
  EXPECT_THAT(refusal({"-n", "2", "--min-workers", "x", "./a"}), HasSubstr("--min-workers x"));
}

TEST(RunArgumentsTest, ANumberOfWorkersThatMayChangeMakesTheJobElastic) {
  const auto options = parse_run_arguments({"-n", "1:4096", "./prog"});
  EXPECT_EQ(options.min_workers, 1);
  EXPECT_EQ(options.most_workers, 4096);
  EXPECT_GE(options.workers, 1);
  EXPECT_TRUE(control::elastic(options));
  EXPECT_EQ(control::places(options), 4096);
  EXPECT_THAT(refusal({"-n", "1:2:3", "./prog"}), HasSubstr("MIN:MAX"));
}

TEST(RunArgumentsTest, AnEngineThatDoesNotExistIsRefused) {
  EXPECT_THAT(refusal({"-n", "2", "--engine", "foo", "./prog"}),
              HasSubstr("there is no engine 'foo'; engines are"));
}

TEST(RunArgumentsTest, OptionsOfSeveralHostsArrive) {
  const auto options =
      parse_run_arguments({"--nodes", "3", "--node-rank", "2", "--rendezvous", "a:1",
                           "--secret-file", "f", "--wire", "plain", "-n", "1", "./prog"});
  EXPECT_EQ(options.nodes.nodes, 3);
  EXPECT_EQ(options.nodes.rank, 2);
  EXPECT_EQ(options.nodes.rendezvous, "a:1");
  EXPECT_EQ(options.nodes.secret_file, "f");
  EXPECT_EQ(options.wire, Wire::kPlain);
  EXPECT_THAT(refusal({"--hosts", "a:1", "--nodes", "2", "--node-rank", "0", "./prog"}),
              HasSubstr("leave out --nodes"));
  EXPECT_THAT(refusal({"--hosts", "a", "./prog"}), HasSubstr("HOST:WORKERS"));
  EXPECT_EQ(refusal({"--hosts", "a", "-n", "2", "./prog"}), "accepted");
}

TEST(RunArgumentsTest, AHostThatJoinsHasWorkersThatMayLeave) {
  const auto options =
      parse_run_arguments({"--join", "a:1", "--secret-file", "f", "-n", "2", "./prog"});
  EXPECT_EQ(options.nodes.join, "a:1");
  EXPECT_EQ(options.command, std::vector<std::string>{"./prog"});
  EXPECT_TRUE(control::elastic(options));
  control::check(options);
  EXPECT_THAT(refusal({"--join", "", "-n", "2", "./prog"}), HasSubstr("give HOST:PORT"));
  EXPECT_THAT(refusal({"--join", "a:1", "--hosts", "a:1", "./prog"}), HasSubstr("leave out"));
}

TEST(RunArgumentsTest, HostsGetTheOptionsThatAreForThem) {
  EXPECT_THAT(words_for_hosts({"--hosts", "a,b", "-n", "4", "--env", "A=1", "--ssh=x", "-q", "-n4",
                               "--workers=2", "--rendezvous", "a:1", "--log-dir", "d"}),
              ElementsAre("--env", "A=1", "-q", "--log-dir", "d"));
}

TEST(RunArgumentsTest, DefaultsLeaveTheChoiceToTheEnvironment) {
  const auto options = parse_run_arguments({"-n", "1", "./prog"});
  EXPECT_EQ(options.threads, std::nullopt);
  EXPECT_EQ(options.timeout_s, std::nullopt);
  EXPECT_EQ(options.grace, std::chrono::seconds(10));
  EXPECT_FALSE(options.quiet);
}

TEST(RunArgumentsTest, WhatCannotBeUnderstoodIsOneLine) {
  EXPECT_THAT(refusal({"--nope", "--", "./a"}), HasSubstr("--nope"));
  EXPECT_THAT(refusal({"-n", "two", "./a"}), HasSubstr("two"));
  EXPECT_THAT(refusal({"-n"}), HasSubstr("see `lockstep run --help`"));
  EXPECT_THAT(refusal({"./a"}), HasSubstr("-n"));
  EXPECT_THAT(refusal({"-n", "2", "--env", "x", "./a"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(refusal({"-n", "2", "--device", "gpu", "./a"}), HasSubstr("--device gpu"));
  EXPECT_THAT(refusal({"-n", "2", "--grace", "nan", "./a"}), HasSubstr("--grace"));
  EXPECT_THAT(refusal({"-n", "2", "--grace", "1e999", "./a"}), HasSubstr("--grace 1e999"));
  EXPECT_THAT(refusal({"-n", "2", "--timeout", "5x", "./a"}), HasSubstr("--timeout 5x"));
  EXPECT_THAT(refusal({"-n", "0x2", "./a"}), HasSubstr("--workers 0x2: give a whole number"));
  EXPECT_THAT(refusal({"-n", "99999999999", "./a"}), HasSubstr("--workers 99999999999"));
  for (const auto& line : {refusal({"--nope"}), refusal({"-n", "two"}), refusal({"-n"}),
                           refusal({"--timeout", "x"})}) {
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace lockstep::app
