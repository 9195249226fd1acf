#include "comm/core/said_by_all.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <map>
#include <set>

namespace lockstep::comm {
namespace {

using ::testing::ElementsAre;

// Ranks take turns in one thread, the last first: rank 0 finds what the others have put. What they ask for before it is
// there is a Timeout.
class Shelf {
 public:
  std::map<std::string, std::string> values;
  std::map<int, int> asked;  // by rank: how often
};

class ShelfBootstrap : public Bootstrap {
 public:
  ShelfBootstrap(Shelf& shelf, int rank, int size) : shelf_(shelf), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "test"; }
  std::string secret() const override { return ""; }
  void put(std::string_view key, std::string_view value, Deadline) override {
    shelf_.values.emplace(key, value);
  }
  std::string get(std::string_view key, Deadline) override {
    ++shelf_.asked[rank_];
    const auto found = shelf_.values.find(std::string(key));
    if (found == shelf_.values.end()) throw Timeout("nobody has put " + std::string(key));
    return found->second;
  }

 private:
  Shelf& shelf_;
  int rank_;
  int size_;
};

Deadline now() {
  return Deadline::after(std::chrono::seconds(0));
}

std::vector<std::string> ask(Shelf& shelf, int rank, int size, const std::string& own) {
  ShelfBootstrap bootstrap(shelf, rank, size);
  return said_by_all(bootstrap, "colours", own, now());
}

TEST(SaidByAllTest, EveryWorkerHearsAllByRankAndAsksOnce) {
  Shelf shelf;
  EXPECT_THROW(ask(shelf, 2, 3, ""), Timeout);
  EXPECT_THROW(ask(shelf, 1, 3, std::string("b\0b", 3)), Timeout);
  EXPECT_THAT(ask(shelf, 0, 3, "red"), ElementsAre("red", std::string("b\0b", 3), ""));
  shelf.asked.clear();
  EXPECT_THAT(ask(shelf, 1, 3, ""), ElementsAre("red", std::string("b\0b", 3), ""));
  EXPECT_THAT(ask(shelf, 2, 3, ""), ElementsAre("red", std::string("b\0b", 3), ""));
  EXPECT_EQ(shelf.asked[1], 1);
  EXPECT_EQ(shelf.asked[2], 1);
}

TEST(SaidByAllTest, AWorkerAloneHearsItself) {
  Shelf shelf;
  EXPECT_THAT(ask(shelf, 0, 1, "red"), ElementsAre("red"));
}

TEST(SaidByAllTest, TopicsDoNotMix) {
  Shelf shelf;
  ShelfBootstrap bootstrap(shelf, 0, 1);
  EXPECT_THAT(said_by_all(bootstrap, "one", "1", now()), ElementsAre("1"));
  EXPECT_THAT(said_by_all(bootstrap, "two", "2", now()), ElementsAre("2"));
}

TEST(SaidByAllTest, ALongValueIsAMismatchThatNamesItsRank) {
  Shelf shelf;
  EXPECT_THROW(ask(shelf, 1, 2, std::string(kMostSaidBytes + 1, 'x')), Timeout);
  try {
    ask(shelf, 0, 2, "red");
    ADD_FAILURE();
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.ranks(), ElementsAre(1));
  }
}

int late_rank(Shelf& shelf, int rank, int size) {
  try {
    ask(shelf, rank, size, "blue");
  } catch (const Timeout& error) {
    EXPECT_EQ(error.ranks().size(), 1U) << error.what();
    return error.ranks().at(0);
  }
  return -1;
}

TEST(SaidByAllTest, EveryWorkerNamesTheRankThatSaysNothing) {
  Shelf shelf;
  EXPECT_EQ(late_rank(shelf, 1, 4), 0) << "rank 0 has said nothing yet";
  EXPECT_EQ(late_rank(shelf, 0, 4), 2);
  EXPECT_EQ(late_rank(shelf, 1, 4), 2);
  EXPECT_EQ(late_rank(shelf, 3, 4), 2);
  shelf.values["colours/all"] = "late 4";
  EXPECT_THROW(ask(shelf, 1, 4, "blue"), Mismatch);
}

TEST(SaidByAllTest, NonsenseOfRank0IsAMismatch) {
  Shelf shelf;
  EXPECT_THROW(ask(shelf, 1, 2, "blue"), Timeout);
  ask(shelf, 0, 2, "red");
  const std::string good = shelf.values.at("colours/all");
  const std::set<std::string> bad = {"", good.substr(0, good.size() - 1), good + "x", "xxxx"};
  for (const auto& bytes : bad) {
    shelf.values["colours/all"] = bytes;
    EXPECT_THROW(ask(shelf, 1, 2, "blue"), Mismatch) << bytes.size();
  }
}

}  // namespace
}  // namespace lockstep::comm
