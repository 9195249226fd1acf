#include "base/relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RelayTest, OneRunsAtATimeAndAllMeet) {
  Relay relay(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::string> said;  // without a lock: only one runs
    relay.run({"x", "y", "z"}, [&](int number) {
      const std::string me = std::to_string(number);
      said.push_back(me + "a");
      relay.meet(number, "first", [&] { said.emplace_back("all"); });
      said.push_back(me + "b");
      relay.meet(number, "second", [&] { said.emplace_back("all"); });
      said.push_back(me + "c");
    });
    ASSERT_THAT(said,
                ElementsAre("0a", "1a", "2a", "all", "0b", "1b", "2b", "all", "0c", "1c", "2c"));
  }
}

TEST(RelayTest, FewerThanThreadsAndNoneAndOne) {
  Relay relay(3);
  int ran = 0;
  relay.run({}, [&](int) { ++ran; });
  EXPECT_EQ(ran, 0);
  relay.run({"x"}, [&](int number) { relay.meet(number, "alone", [&] { ++ran; }); });
  EXPECT_EQ(ran, 1);
  relay.run({"x", "y"}, [&](int number) { relay.meet(number, "two", [&] { ++ran; }); });
  EXPECT_EQ(ran, 2);
}

// One fails, all others are unwound, and the next run is like the first.
TEST(RelayTest, AFailureOfOneEndsAll) {
  Relay relay(3);
  for (int failing = 0; failing < 3; ++failing) {
    std::vector<int> went_on;
    std::vector<int> unwound;
    const auto body = [&](int number) {
      struct Unwinding {
        std::vector<int>& numbers;
        int number;
        ~Unwinding() { numbers.push_back(number); }
      } const unwinding{unwound, number};
      relay.meet(number, "first", [] {});
      if (number == failing) throw std::runtime_error("no " + std::to_string(number));
      relay.meet(number, "second", [] {});
      went_on.push_back(number);
    };
    try {
      relay.run({"x", "y", "z"}, body);
      ADD_FAILURE() << failing;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "no " + std::to_string(failing));
    }
    EXPECT_TRUE(went_on.empty());
    EXPECT_EQ(unwound.size(), 3U);
  }
  EXPECT_THROW(relay.run({"x", "y"},
                         [&](int number) { relay.meet(number, "x", [] { throw Timeout("t"); }); }),
               Timeout);
}

TEST(RelayTest, DifferentMeetingsAreAnError) {
  Relay relay(2);
  const auto message = [&](const std::function<void(int)>& body) -> std::string {
    try {
      relay.run({"x", "y"}, body);
    } catch (const BadInput& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([&](int number) { relay.meet(number, number == 0 ? "a" : "b", [] {}); }),
              HasSubstr("x is at a, and y is at b"));
  EXPECT_THAT(message([&](int number) {
                if (number == 0) relay.meet(number, "a", [] {});
              }),
              HasSubstr("y has ended, and x waits for it at a"));
  EXPECT_THAT(message([&](int number) {
                if (number == 1) relay.meet(number, "a", [] {});
              }),
              HasSubstr("x has ended, and y is at a"));
}

}  // namespace
}  // namespace lockstep::base
