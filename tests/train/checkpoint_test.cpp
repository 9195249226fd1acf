// What `lockstep train` keeps, where, whose it is, and what becomes of it when it is damaged.
#include <fmt/format.h>

#include <csignal>

#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class Checkpoints : public Train {
 protected:
  const std::string run_ = path("run");
  std::string newest() const { return checkpoints().at(0); }
  std::string named(int step) const {
    return path(fmt::format("run/checkpoint-{:09}.safetensors", step));
  }

  std::vector<std::string> in_run(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--workers", "1", "--checkpoint", run_});
    return more;
  }

  // Replaces a text of the file by one of the same length.
  static void change(const std::string& file, const std::string& from, const std::string& to) {
    std::string bytes = read(file);
    const auto at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    std::ofstream(file, std::ios::binary) << bytes.replace(at, from.size(), to);
  }
  static std::string read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // As versions wrote it that hashed nothing but the data.
  static void forget_header_hash(const std::string& file) {
    const std::string bytes = read(file);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
    header["__metadata__"].erase("lockstep.hashes");
    header["__metadata__"].erase("lockstep.header_sha256");
    const std::string text = header.dump();
    const std::uint64_t size = text.size();
    std::ofstream(file, std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&size), sizeof size) << text
        << bytes.substr(sizeof length + length);
  }

  // In a folder of this test, where the default directory is then made.
  Command in_folder(const std::string& options) const {
    Command command(
        {"/bin/sh", "-c",
         "cd " + quoted(folder_.string()) + " && exec " + quoted(LOCKSTEP_BINARY) +
             " train --model cnn --data synthetic:100 --workers 2 --global-batch 8 " + options},
        {marker_});
    return command;
  }
  std::vector<std::string> runs() const {
    std::vector<std::string> names;
    if (!fs::exists(folder_ / "lockstep-runs")) return names;
    for (const auto& entry : fs::directory_iterator(folder_ / "lockstep-runs"))
      names.push_back(entry.path().filename());
    return names;
  }
};

TEST_F(Checkpoints, OneChangedDigitIsRefusedAndSoIsACutFile) {
  report_of(in_run({"--steps", "12"}));
  const std::string file = newest();
  const std::string whole = read(file);
  const auto again = in_run({"--steps", "14", "--resume", "--quiet"});
  for (const auto& [from, to] : {std::pair{R"("lockstep.step":"12")", R"("lockstep.step":"13")"},
                                 std::pair{R"("lockstep.step":"12")", R"("lockstep.step":"1r")"},
                                 std::pair{"lockstep.header_sha256", "lockstep.header_sha257"},
                                 std::pair{"optimizer_options", "optimizer_option_"}}) {
    change(file, from, to);
    expect_refusal(finished(again), "is damaged", 2);
    std::ofstream(file, std::ios::binary) << whole;
  }
  fs::resize_file(file, fs::file_size(file) / 2);
  expect_refusal(finished(again), "is cut short", 2);
}

TEST_F(Checkpoints, OfEarlierVersionsAreReadAndSaidToBeUnchecked) {
  report_of(in_run({"--steps", "2"}));
  forget_header_hash(newest());
  Command command = finished(in_run({"--steps", "3", "--resume", "--quiet"}));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(lines_of(command.err()), SizeIs(1));
  EXPECT_THAT(command.err(), HasSubstr("not under a checksum"));
  forget_header_hash(newest());
  change(newest(), R"("lockstep.step":"3")", R"("lockstep.step":"r")");
  expect_refusal(finished(in_run({"--steps", "4", "--resume", "--quiet"})),
                 "has no whole number for lockstep.step: 'r'", 2);
}

TEST_F(Checkpoints, BelongToOneJobUntilThatEndsOrIsKilled) {
  Command holder =
      start(in_run({"--workers", "2", "--steps", "100000", "--checkpoint-every", "1"}));
  ASSERT_TRUE(holder.wait_for("step 1/", 1, seconds(60)));
  const pid_t leader = worker(0);
  ASSERT_GT(leader, 0);
  const std::string marker = std::exchange(marker_, make_marker());
  expect_refusal(finished(in_run({"--steps", "5", "--quiet", "--overwrite"})),
                 "another job (pid " + std::to_string(leader) + " on host ", 2);
  ASSERT_THAT(checkpoints(), Not(IsEmpty()));
  holder.signal(SIGKILL);
  EXPECT_GT(report_of(in_run({"--steps", "1", "--resume"}))["first_step"].get<int>(), 0);
  ASSERT_TRUE(holder.finish(seconds(20)));
  EXPECT_FALSE(fs::exists(path("run/checkpoint.lock")));
  marker_ = marker;
}

TEST_F(Checkpoints, OfAnotherJobAreReplacedOnlyOnDemand) {
  report_of(in_run({"--steps", "4", "--checkpoint-every", "1"}));
  EXPECT_THAT(checkpoints(), ElementsAre(named(4), named(3)));
  const std::string whole = read(newest());
  expect_refusal(finished(in_run({"--steps", "3", "--seed", "1", "--quiet"})), "--overwrite", 2);
  EXPECT_EQ(read(newest()), whole);
  EXPECT_EQ(report_of(in_run({"--steps", "3", "--seed", "1", "--overwrite"}))["first_step"], 0);
  EXPECT_THAT(checkpoints(), ElementsAre(named(3))) << "the others were the other job's";
}

TEST_F(Checkpoints, TheLastOnesAreKept) {
  const auto report =
      report_of(in_run({"--steps", "9", "--checkpoint-every", "2", "--keep-checkpoints", "3"}));
  EXPECT_THAT(checkpoints(), ElementsAre(named(9), named(8), named(6)));
  EXPECT_EQ(report["checkpoint"], named(9));
  report_of(in_run({"--steps", "10", "--resume", "--keep-checkpoints", "1"}));
  EXPECT_THAT(checkpoints(), ElementsAre(named(10)));
}

TEST_F(Checkpoints, ADamagedOneIsSkippedForTheOneBeforeWhichGoesOnToTheSameBits) {
  const auto straight = report_of({"--steps", "7", "--workers", "1"});
  report_of(in_run({"--steps", "4", "--checkpoint-every", "2"}));
  std::string bytes = read(named(4));
  bytes[bytes.size() - 5] ^= 1;
  std::ofstream(named(4), std::ios::binary) << bytes;
  Command command = finished(in_run({"--steps", "7", "--resume", "--checkpoint-every", "3",
                                     "--quiet", "--report", path("report.json")}));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(lines_of(command.err()), SizeIs(1)) << command.err();
  EXPECT_THAT(command.err(), HasSubstr(named(4) + ": is damaged: its data"));
  EXPECT_THAT(command.err(), HasSubstr("goes on from an earlier one, " + named(2)));
  const auto resumed = nlohmann::json::parse(read(path("report.json")));
  EXPECT_EQ(resumed["first_step"], 2);
  EXPECT_EQ(resumed["weights_sha256"], straight["weights_sha256"]);
  EXPECT_THAT(checkpoints(), ElementsAre(named(7), named(6)));
}

TEST_F(Checkpoints, IfAllAreDamagedTheJobIsRefused) {
  report_of(in_run({"--steps", "4", "--checkpoint-every", "2"}));
  for (const int step : {2, 4}) fs::resize_file(named(step), fs::file_size(named(step)) / 2);
  Command refused = finished(in_run({"--steps", "6", "--resume", "--quiet"}));
  expect_refusal(refused, named(4) + ": is cut short", 2);
  EXPECT_THAT(refused.err(), HasSubstr("The earlier ones there cannot be read either"));
}

TEST_F(Checkpoints, OfADirectoryOfEarlierVersionsGoOnAndAreReplaced) {
  const auto straight = report_of({"--steps", "6", "--workers", "1"});
  report_of(in_run({"--steps", "4", "--checkpoint-every", "2"}));
  const std::string earlier = path("run/checkpoint.safetensors");
  const std::string previous = path("run/checkpoint.previous.safetensors");
  fs::rename(named(4), earlier);
  fs::rename(named(2), previous);
  expect_refusal(finished(in_run({"--steps", "6", "--quiet"})), "holds the checkpoint of a job", 2);
  const auto resumed = report_of(in_run({"--steps", "5", "--resume"}));
  EXPECT_EQ(resumed["first_step"], 4);
  EXPECT_THAT(checkpoints(), UnorderedElementsAre(named(5), earlier)) << "two are kept";
  EXPECT_EQ(report_of(in_run({"--steps", "6", "--resume"}))["weights_sha256"],
            straight["weights_sha256"]);
  EXPECT_THAT(checkpoints(), ElementsAre(named(6), named(5)));
}

TEST_F(Checkpoints, ComeByTheClockAndAreWrittenWhileTheJobTrains) {
  Command command = start(in_run({"--steps", "100000", "--checkpoint-every", "0.2s"}));
  ASSERT_TRUE(
      command.wait_for("checkpoint in " + run_ + ", every 0.2 s and at the end", 1, seconds(60)));
  for (const Deadline deadline = seconds(60); checkpoints().size() < 2 && !deadline.expired();)
    ::usleep(10'000);
  EXPECT_GE(checkpoints().size(), 2U);
  command.signal(SIGTERM);
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_EQ(command.exit_code(), 128 + SIGTERM) << command.err();
}

TEST_F(Checkpoints, AnIntervalThatIsNoneIsRefused) {
  for (const char* interval : {"30x", "s", "-1s", "0s", "nans", "1e99h", "", "2.5", "5m"})
    expect_refusal(finished(in_run({"--checkpoint-every", interval})), "--checkpoint-every", 2);
  expect_refusal(finished(in_run({"--keep-checkpoints", "0"})), "--keep-checkpoints 0", 2);
}

TEST_F(Checkpoints, AreKeptByDefaultInADirectoryOfTheRun) {
  Command one = in_folder("--steps 3");
  Command two = in_folder("--steps 3");
  ASSERT_TRUE(one.finish(seconds(60)));
  ASSERT_TRUE(two.finish(seconds(60)));
  EXPECT_EQ(one.exit_code(), 0) << one.err();
  EXPECT_EQ(two.exit_code(), 0) << two.err();
  ASSERT_THAT(runs(), SizeIs(2));
  for (const std::string& name : runs()) {
    const std::string directory = "lockstep-runs/" + name;
    const std::string line = "checkpoint in " + directory +
                             ", after every epoch and at the end; change it with "
                             "--checkpoint DIR, --checkpoint none";
    EXPECT_NE(one.out().find(line) == std::string::npos, two.out().find(line) == std::string::npos);
  }
  Command more = in_folder("--steps 5 --quiet --report report --resume lockstep-runs/" + runs()[0]);
  ASSERT_TRUE(more.finish(seconds(60)));
  EXPECT_EQ(more.exit_code(), 0) << more.err();
  EXPECT_EQ(nlohmann::json::parse(read(path("report")))["first_step"], 3);
}

TEST_F(Checkpoints, LeaveNothingWhereNoneIsWantedOrTheJobIsRefused) {
  Command none = in_folder("--steps 2 --checkpoint none");
  Command refused = in_folder("--steps 2 --model gpt");
  ASSERT_TRUE(none.finish(seconds(60)));
  ASSERT_TRUE(refused.finish(seconds(60)));
  EXPECT_EQ(none.exit_code(), 0) << none.err();
  EXPECT_THAT(none.out(), HasSubstr("no checkpoint is kept"));
  EXPECT_EQ(refused.exit_code(), 2);
  EXPECT_FALSE(fs::exists(folder_ / "lockstep-runs"));
}

}  // namespace
}  // namespace lockstep::testing
