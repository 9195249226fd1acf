// What `lockstep train` keeps, where, whose it is, and what becomes of it when it is damaged.
#include <csignal>

#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

class Checkpoints : public Train {
 protected:
  const std::string run_ = path("run");
  const std::string file_ = path("run/checkpoint.safetensors");
  const std::string previous_ = path("run/checkpoint.previous.safetensors");

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
  const std::string whole = read(file_);
  const auto again = in_run({"--steps", "14", "--resume", "--quiet"});
  for (const auto& [from, to] : {std::pair{R"("lockstep.step":"12")", R"("lockstep.step":"13")"},
                                 std::pair{R"("lockstep.step":"12")", R"("lockstep.step":"1r")"},
                                 std::pair{"lockstep.header_sha256", "lockstep.header_sha257"},
                                 std::pair{"optimizer_options", "optimizer_option_"}}) {
    change(file_, from, to);
    expect_refusal(finished(again), "is damaged", 2);
    std::ofstream(file_, std::ios::binary) << whole;
  }
  fs::resize_file(file_, fs::file_size(file_) / 2);
  expect_refusal(finished(again), "is cut short", 2);
}

TEST_F(Checkpoints, OfEarlierVersionsAreReadAndSaidToBeUnchecked) {
  report_of(in_run({"--steps", "2"}));
  forget_header_hash(file_);
  Command command = finished(in_run({"--steps", "3", "--resume", "--quiet"}));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(lines_of(command.err()), SizeIs(1));
  EXPECT_THAT(command.err(), HasSubstr("not under a checksum"));
  forget_header_hash(file_);
  change(file_, R"("lockstep.step":"3")", R"("lockstep.step":"r")");
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
  ASSERT_TRUE(fs::exists(file_));
  holder.signal(SIGKILL);
  EXPECT_GT(report_of(in_run({"--steps", "1", "--resume"}))["first_step"].get<int>(), 0);
  ASSERT_TRUE(holder.finish(seconds(20)));
  EXPECT_FALSE(fs::exists(path("run/checkpoint.lock")));
  marker_ = marker;
}

TEST_F(Checkpoints, OfAnotherJobAreReplacedOnlyOnDemand) {
  report_of(in_run({"--steps", "2", "--checkpoint-every", "1"}));
  ASSERT_TRUE(fs::exists(previous_));
  const std::string whole = read(file_);
  expect_refusal(finished(in_run({"--steps", "3", "--seed", "1", "--quiet"})), "--overwrite", 2);
  EXPECT_EQ(read(file_), whole);
  EXPECT_EQ(report_of(in_run({"--steps", "3", "--seed", "1", "--overwrite"}))["first_step"], 0);
  EXPECT_FALSE(fs::exists(previous_)) << "it was the other job's";
}

TEST_F(Checkpoints, TheOneBeforeADamagedOneIsNamedAndGoesOnToTheSameBits) {
  const auto straight = report_of({"--steps", "6", "--workers", "1"});
  report_of(in_run({"--steps", "4", "--checkpoint-every", "2"}));
  std::string bytes = read(file_);
  bytes[bytes.size() - 5] ^= 1;
  std::ofstream(file_, std::ios::binary) << bytes;
  const auto again = in_run({"--steps", "6", "--resume", "--quiet"});
  Command refused = finished(again);
  expect_refusal(refused, "is damaged: its data", 2);
  const std::string way = "mv '" + previous_ + "' '" + file_ + "'";
  EXPECT_THAT(refused.err(), HasSubstr("The checkpoint before it, of step 2, is whole"));
  ASSERT_THAT(refused.err(), HasSubstr(way));
  fs::remove(file_);
  expect_refusal(finished(again), "is not there. The checkpoint before it, of step 2", 2);
  ASSERT_EQ(std::system(way.c_str()), 0);
  const auto resumed = report_of(in_run({"--steps", "6", "--resume"}));
  EXPECT_EQ(resumed["first_step"], 2);
  EXPECT_EQ(resumed["weights_sha256"], straight["weights_sha256"]);
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
