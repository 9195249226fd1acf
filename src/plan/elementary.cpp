#include "plan/elementary.h"

#include <cmath>

#include "base/check.h"

namespace lockstep::plan {
namespace {

constexpr double kPi = 3.141592653589793;

// ln 2 in two parts. The first has so few bits that its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// The Taylor series 1 − y/n(n+1) · (1 − y/(n+2)(n+3) · (…)), from the smallest term up. For y = x²,
// x ≤ π/4, eight factors leave less than 2^-55.
double alternating_series(double y, int n) {
  constexpr int kFactors = 8;
  double sum = 1;
  for (int i = kFactors - 1; i >= 0; --i) {
    const int from = n + 2 * i;
    sum = 1 - y / (static_cast<double>(from) * (from + 1)) * sum;
  }
  return sum;
}

double cosine_near_zero(double x) {
  return alternating_series(x * x, 1);
}
double sine_near_zero(double x) {
  return x * alternating_series(x * x, 2);
}

// e^z. What is left after whole powers of 2 is at most ln 2 / 2, where 14 terms leave less than
// 2^-56.
double exponential(double z) {
  constexpr int kTerms = 14;
  constexpr double kOut = 1100;  // beyond it the result is 0 or infinite
  if (z < -kOut) return 0;
  if (z > kOut) return std::ldexp(1.0, 2000);
  const double whole = std::floor(z / (kLn2High + kLn2Low) + 0.5);
  const double rest = (z - whole * kLn2High) - whole * kLn2Low;
  double sum = 1;
  for (int i = kTerms; i >= 1; --i) sum = 1 + sum * rest / i;
  return std::ldexp(sum, static_cast<int>(whole));
}

double whole_power(double x, double y) {
  double result = 1;
  for (double factor = x; y > 0; factor *= factor) {
    const double half = std::floor(y / 2);
    if (y - 2 * half == 1) result *= factor;
    y = half;
  }
  return result;
}

}  // namespace

double cos_pi(double x) {
  LOCKSTEP_CHECK(x >= 0 && x <= 1, "cos_pi is for a half turn");
  if (x > 0.5) return -cos_pi(1 - x);
  return x <= 0.25 ? cosine_near_zero(kPi * x) : sine_near_zero(kPi * (0.5 - x));
}

// The mantissa m is between √½ and √2, and ln m = 2 · (s + s³/3 + s⁵/5 + …) with
// s = (m − 1) / (m + 1). s² ≤ 0.0295, so twelve terms leave less than 2^-60 of it.
double logarithm(double x) {
  LOCKSTEP_CHECK(x > 0 && std::isfinite(x), "only numbers above 0 have a logarithm");
  constexpr int kTerms = 12;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.7071067811865476) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double square = s * s;
  double sum = 0;
  for (int i = kTerms; i >= 1; --i) sum = (sum + 1.0 / (2 * i + 1)) * square;
  return exponent * kLn2High + (2 * s + (2 * s * sum + exponent * kLn2Low));
}

double power(double x, double y) {
  LOCKSTEP_CHECK(x >= 0 && y >= 0, "power is for numbers that are not negative");
  if (std::floor(y) == y) return whole_power(x, y);
  return x == 0 ? 0 : exponential(y * logarithm(x));
}

}  // namespace lockstep::plan
