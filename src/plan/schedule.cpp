#include "plan/schedule.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace lockstep::plan {
namespace {

constexpr double kPi = 3.141592653589793;

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

void check_rate(double rate, const char* name) {
  if (!std::isfinite(rate) || rate < 0) {
    throw BadInput(fmt::format("{} is {}: give a finite number that is not negative", name, rate));
  }
}

void check_scaling(const ScheduleOptions& options) {
  check_rate(options.base_lr, "base_lr");
  if (options.base_batch < 1 || options.global_batch < 1) {
    throw BadInput(fmt::format(
        "base_batch {} and global_batch {} must both be at least 1; give both the same to "
        "leave the rate as it is",
        options.base_batch, options.global_batch));
  }
}

void check_warmup(const ScheduleOptions& options) {
  if (options.warmup_steps < 0) {
    throw BadInput(fmt::format("warmup_steps is {}: 0 means none", options.warmup_steps));
  }
  if (options.warmup_start_lr) check_rate(*options.warmup_start_lr, "warmup_start_lr");
}

void check_milestones(const ScheduleOptions& options) {
  check_rate(options.gamma, "gamma");
  std::int64_t least = options.warmup_steps;
  for (const std::int64_t milestone : options.milestones) {
    if (milestone < least) {
      throw BadInput(
          fmt::format("milestone {} comes before step {}: milestones ascend and begin after the "
                      "warm-up",
                      milestone, least));
    }
    least = milestone + 1;
  }
}

void check_cosine(const ScheduleOptions& options, double peak) {
  check_rate(options.floor_lr, "floor_lr");
  if (options.total_steps <= options.warmup_steps) {
    throw BadInput(fmt::format(
        "total_steps {} leaves no steps after a warm-up of {}: give more, or warm up for "
        "fewer",
        options.total_steps, options.warmup_steps));
  }
  if (options.floor_lr > peak) {
    throw BadInput(fmt::format("floor_lr {} is above the peak of {}: the rate would climb",
                               options.floor_lr, peak));
  }
}

}  // namespace

double cos_pi(double x) {
  LOCKSTEP_CHECK(x >= 0 && x <= 1, "cos_pi is for a half turn");
  if (x > 0.5) return -cos_pi(1 - x);
  return x <= 0.25 ? cosine_near_zero(kPi * x) : sine_near_zero(kPi * (0.5 - x));
}

Schedule::Schedule(ScheduleOptions options) : options_(std::move(options)) {
  check_scaling(options_);
  check_warmup(options_);
  // The quotient is computed first, because it is exactly 1 if the batches are equal.
  peak_ = options_.base_lr *
          (static_cast<double>(options_.global_batch) / static_cast<double>(options_.base_batch));
  check_rate(peak_, "base_lr · global_batch / base_batch");
  start_ = options_.warmup_start_lr.value_or(std::min(options_.base_lr, peak_));
  if (options_.decay == Decay::kStep) check_milestones(options_);
  if (options_.decay == Decay::kCosine) check_cosine(options_, peak_);
}

double Schedule::lr(std::int64_t step) const {
  if (step < 0) throw BadInput(fmt::format("step {}: steps count from 0", step));
  return step < options_.warmup_steps ? warmup_lr(step) : decayed_lr(step);
}

double Schedule::warmup_lr(std::int64_t step) const {
  return start_ + (peak_ - start_) *
                      (static_cast<double>(step) / static_cast<double>(options_.warmup_steps));
}

double Schedule::decayed_lr(std::int64_t step) const {
  if (options_.decay == Decay::kStep) {
    double rate = peak_;
    for (const std::int64_t milestone : options_.milestones) {
      if (milestone <= step) rate *= options_.gamma;
    }
    return rate;
  }
  if (options_.decay == Decay::kCosine) {
    if (step >= options_.total_steps) return options_.floor_lr;
    const double done = static_cast<double>(step - options_.warmup_steps) /
                        static_cast<double>(options_.total_steps - options_.warmup_steps);
    return options_.floor_lr + (peak_ - options_.floor_lr) * ((1 + cos_pi(done)) / 2);
  }
  return peak_;
}

}  // namespace lockstep::plan
