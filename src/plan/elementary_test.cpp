#include "plan/elementary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::plan {
namespace {

// std::cos of glibc is right to less than one unit in the last place, so 2^-52 bounds our own error
// too.
TEST(CosPi, IsWithinOneUnitOfTheLibrarysCosine) {
  for (int i = 0; i <= 100'000; ++i) {
    const double x = i / 100'000.0;
    ASSERT_NEAR(cos_pi(x), static_cast<double>(std::cos(3.14159265358979323846264L * x)),
                std::ldexp(1.0, -52))
        << "x " << x;
  }
  EXPECT_EQ(cos_pi(0), 1.0);
  EXPECT_EQ(cos_pi(0.5), 0.0);
  EXPECT_EQ(cos_pi(1), -1.0);
}

TEST(Logarithm, IsAsCloseToTheLibrarysAsItSays) {
  for (const double x :
       {0x1p-1074, 0x1p-53, 0.001, 0.5, 0.7071, 0.999, 1 - 0x1p-53, 1.0, 1.001, 1e300}) {
    const double expected = std::log(x);
    EXPECT_NEAR(logarithm(x), expected, std::abs(expected) * 0x1p-51) << "x " << x;
  }
}

TEST(Power, IsAsCloseToTheLibrarysAsItSays) {
  for (const double y : {0.1, 0.5, 0.9, 1.5, 2.0, 3.0, 7.25, 16.0}) {
    for (int i = 1; i <= 2000; ++i) {
      const double x = i / 1000.0;
      const double expected = std::pow(x, y);
      const double most = (1 + std::abs(y * std::log(x))) * std::ldexp(expected, -52);
      ASSERT_NEAR(power(x, y), expected, y == std::floor(y) ? 16 * most : most) << x << " ^ " << y;
    }
  }
}

TEST(Power, OfWholeNumbersAndEndsIsExact) {
  EXPECT_EQ(power(0.3, 0), 1.0);
  EXPECT_EQ(power(0.3, 1), 0.3);
  EXPECT_EQ(power(0.5, 1000), std::ldexp(1.0, -1000));
  EXPECT_EQ(power(0, 0.9), 0.0);
  EXPECT_EQ(power(0, 3), 0.0);
  EXPECT_EQ(power(1, 0.9), 1.0);
  EXPECT_EQ(power(0.1, 1e9), 0.0);
  EXPECT_EQ(power(1e-300, 1.5), 0.0);
  EXPECT_EQ(power(1e300, 1.5), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace lockstep::plan
