// Functions of the C library that may differ in the last bit between processors, from + − · / of
// doubles, which do not. Learning rates and weighted draws use them: workers must agree on every
// bit.
#pragma once

namespace lockstep::plan {

// cos(π · x) for 0 ≤ x ≤ 1. The error is at most 2^-52.
double cos_pi(double x);

// x^y for finite x ≥ 0 and y ≥ 0. If y is a whole number it only multiplies. The error is about
// (1 + |y · ln x|) · 2^-52 of the result.
double power(double x, double y);

// ln x for finite x > 0. The error is about 2^-52 of the result.
double logarithm(double x);

}  // namespace lockstep::plan
