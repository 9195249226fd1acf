#include "base/denormals.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace lockstep::base {
namespace {

class Denormals : public ::testing::Test {
 protected:
  Denormals() {
    if (!set_flush_denormals(true)) skip_ = true;
    set_flush_denormals(false);
  }
  void SetUp() override {
    if (skip_) GTEST_SKIP() << "this processor cannot flush denormals, as far as we know it";
  }
  ~Denormals() override { set_flush_denormals(false); }

 private:
  bool skip_ = false;
};

// What this thread makes of the half of the least normal number.
template <typename Number>
Number half_of_the_least() {
  volatile Number number = std::numeric_limits<Number>::min();
  return number / 2;
}

TEST_F(Denormals, AreKeptOrTakenForZeroAsAsked) {
  EXPECT_GT(half_of_the_least<float>(), 0);
  EXPECT_TRUE(set_flush_denormals(true));
  EXPECT_EQ(half_of_the_least<float>(), 0);
  EXPECT_EQ(half_of_the_least<double>(), 0);
  EXPECT_TRUE(set_flush_denormals(false));
  EXPECT_FALSE(flushes_denormals());
  EXPECT_GT(half_of_the_least<double>(), 0);
}

TEST_F(Denormals, ANewThreadDoesAsTheOneThatMadeIt) {
  for (const bool on : {true, false}) {
    ASSERT_TRUE(set_flush_denormals(on));
    bool child = !on;
    bool grandchild = !on;
    std::thread([&] {
      child = flushes_denormals();
      std::thread([&] { grandchild = flushes_denormals(); }).join();
    }).join();
    EXPECT_EQ(child, on);
    EXPECT_EQ(grandchild, on);
  }
}

TEST_F(Denormals, AThreadThatIsThereAlreadyStaysAsItIs) {
  bool other = true;
  std::thread([&] {
    std::thread([] { set_flush_denormals(true); }).join();
    other = flushes_denormals();
  }).join();
  EXPECT_FALSE(other);
  EXPECT_FALSE(flushes_denormals());
}

}  // namespace
}  // namespace lockstep::base
