#include "control/launch/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Clock = LineSplitter::Clock;

class Collector {
 public:
  explicit Collector(std::size_t limit = 1000) : splitter_(limit) {}

  Collector& feed(std::string_view bytes, std::chrono::milliseconds at = {}) {
    splitter_.feed(bytes, Clock::time_point(std::chrono::hours(1) + at), sink());
    return *this;
  }
  std::vector<std::string> finish() {
    splitter_.finish(sink());
    return std::exchange(lines_, {});
  }
  std::vector<std::string> take() { return std::exchange(lines_, {}); }

 private:
  LineSplitter::Sink sink() {
    return [this](std::string_view line) { lines_.emplace_back(line); };
  }
  LineSplitter splitter_;
  std::vector<std::string> lines_;
};

TEST(LineSplitterTest, LinesComeWholeHoweverTheBytesArrive) {
  std::string text;
  std::vector<std::string> lines;
  for (int i = 0; i < 300; ++i) {
    lines.push_back(std::string(static_cast<std::size_t>(i % 37), 'x') + std::to_string(i));
    text += lines.back() + (i % 3 == 0 ? "\r\n" : "\n");
  }
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    Collector collector;
    std::string_view rest = text;
    while (!rest.empty()) {
      const auto piece = std::min<std::size_t>(rest.size(), 1 + random() % 50);
      collector.feed(rest.substr(0, piece));
      rest.remove_prefix(piece);
    }
    ASSERT_EQ(collector.finish(), lines);
  }
}

TEST(LineSplitterTest, EmptyLinesStay) {
  EXPECT_THAT(Collector().feed("a\n\n\nb\n").finish(), ElementsAre("a", "", "", "b"));
}

TEST(LineSplitterTest, LastLineWithoutEndIsPassedOnAtTheEnd) {
  Collector collector;
  collector.feed("one\ntwo");
  EXPECT_THAT(collector.take(), ElementsAre("one"));
  EXPECT_THAT(collector.finish(), ElementsAre("two"));
}

TEST(LineSplitterTest, NothingGivesNoLine) {
  EXPECT_THAT(Collector().finish(), IsEmpty());
}

TEST(LineSplitterTest, ProgressBarShowsAtMostOnceASecondAndItsLastState) {
  Collector collector;
  for (int percent = 0; percent <= 100; ++percent) {
    collector.feed("\r" + std::to_string(percent) + " %", std::chrono::milliseconds(percent * 30));
  }
  EXPECT_THAT(collector.take(), ElementsAre("0 %", "34 %", "68 %"));
  EXPECT_THAT(collector.feed("\n").take(), ElementsAre("100 %"));
}

TEST(LineSplitterTest, ReturnAtTheEndOfAPieceWaitsForWhatFollows) {
  Collector collector;
  collector.feed("text\r");
  EXPECT_THAT(collector.take(), IsEmpty());
  EXPECT_THAT(collector.feed("\n").take(), ElementsAre("text"));
}

TEST(LineSplitterTest, LongLineIsPassedOnInPiecesOfTheLimit) {
  Collector collector(4);
  EXPECT_THAT(collector.feed("abcdefghij\nk\n").finish(), ElementsAre("abcd", "efgh", "ij", "k"));
}

TEST(LineSplitterTest, LineOfExactlyTheLimitIsOneLine) {
  Collector collector(4);
  EXPECT_THAT(collector.feed("abcd\nefgh\n\n").finish(), ElementsAre("abcd", "efgh", ""));
}

TEST(LineLimitTest, AllStreamsTogetherStayBelow128MiB) {
  EXPECT_EQ(line_limit(2), std::size_t{1} << 20);
  for (const int streams : {1, 8, 128, 1000, 8192}) {
    EXPECT_LE(line_limit(streams) * static_cast<std::size_t>(streams), std::size_t{128} << 20);
    EXPECT_GE(line_limit(streams), std::size_t{16} << 10);
  }
}

TEST(LinePrefixTest, WidthFitsTheHighestRank) {
  EXPECT_EQ(line_prefix(0, 1, false), "[0] ");
  EXPECT_EQ(line_prefix(9, 10, false), "[9] ");
  EXPECT_EQ(line_prefix(3, 11, false), "[ 3] ");
  EXPECT_EQ(line_prefix(4095, 4096, false), "[4095] ");
}

TEST(LinePrefixTest, ColourSurroundsThePrefixOnly) {
  const std::string coloured = line_prefix(3, 4, true);
  EXPECT_EQ(coloured.rfind("\x1b[", 0), 0U);
  EXPECT_NE(coloured.find("[3] \x1b[0m"), std::string::npos);
}

TEST(TailTest, KeepsTheLastTenLinesCutToAReadableLength) {
  Tail tail;
  for (int i = 0; i < 25; ++i) tail.add(std::to_string(i));
  tail.add(std::string(100'000, 'x'));
  ASSERT_EQ(tail.lines().size(), 10U);
  EXPECT_EQ(tail.lines().front(), "16");
  EXPECT_LT(tail.lines().back().size(), 1000U);
}

}  // namespace
}  // namespace lockstep::control
