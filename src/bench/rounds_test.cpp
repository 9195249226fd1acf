#include "bench/rounds.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

TEST(BenchRoundsTest, ResultsAreFoundAmongOtherLines) {
  EXPECT_THAT(result_lines("[0] {\"a\":1}\nnoise\n[ 3] {\"b\":2}\n{\"c\":3}\n[1] noise\n{half\n"),
              ElementsAre("{\"a\":1}", "{\"b\":2}", "{\"c\":3}"));
}

constexpr std::chrono::minutes kMinute{1};

TEST(BenchRoundsTest, APeerThatFailsIsLeftOutAndOneOfOursIsAFailure) {
  std::vector<int> runs(2, 0);
  const auto count = [&](std::size_t i, const auto&) { ++runs[i]; };
  testing::internal::CaptureStderr();
  EXPECT_TRUE(run_rounds({{"good", true, "", {"true"}, {}}, {"peer", false, "", {"false"}, {}}},
                         {3, kMinute}, TakeRun(count))
                  .good);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("peer ended with 1"));
  EXPECT_THAT(runs, ElementsAre(3, 0));
  testing::internal::CaptureStderr();
  EXPECT_FALSE(run_rounds({{"ours", true, "", {"sh", "-c", "echo why >&2; exit 3"}, {}}},
                          {1, kMinute}, TakeRun(count))
                   .good);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("why"));
  testing::internal::CaptureStderr();
  EXPECT_TRUE(run_rounds({{"slow", false, "", {"sleep", "1000"}, {}}}, {2, std::chrono::seconds(1)},
                         TakeRun(count))
                  .good);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("slow still ran after 1 seconds"));
}

// Of a contender whose run prints the round's number.
struct Rounds {
  std::string system;
  std::vector<int> rounds;
  void add(const std::vector<std::string>& lines) {
    for (const std::string& line : lines)
      rounds.push_back(nlohmann::json::parse(line).at("round").get<int>());
    if (lines.empty()) throw BadInput("it printed nothing");
  }
};

TEST(BenchRoundsTest, NothingIsLeftOfWhoFailsInALaterRound) {
  std::string folder = testing::TempDir() + "lockstep-rounds-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr) << folder;
  const auto contender = [&](const std::string& name, const std::string& second) {
    const std::string first = fmt::format("mkdir {}/{} 2>/dev/null", folder, name);
    return Contender{
        name,
        false,
        "",
        {"sh", "-c", fmt::format("if {}; then echo '{{\"round\":1}}'; else {}; fi", first, second)},
        {}};
  };
  std::vector<Rounds> results = {{"fails", {}}, {"good", {}}, {"silent", {}}, {"garbled", {}}};
  testing::internal::CaptureStderr();
  EXPECT_TRUE(run_rounds({contender("fails", "exit 3"), contender("good", "echo '{\"round\":2}'"),
                          contender("silent", "true"),
                          contender("garbled", "echo '{\"round\":2}'; echo '{\"round\":}'")},
                         {2, std::chrono::seconds(30)}, results));
  const std::string said = testing::internal::GetCapturedStderr();
  std::filesystem::remove_all(folder);
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].system, "good");
  EXPECT_THAT(results[0].rounds, ElementsAre(1, 2));
  for (const char* name : {"fails ended with 3", "silent gave no result", "garbled gave no result"})
    EXPECT_THAT(said, HasSubstr(name));
}

}  // namespace
}  // namespace lockstep::bench
