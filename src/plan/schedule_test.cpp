#include "plan/schedule.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <cmath>
#include <limits>

namespace lockstep::plan {
namespace {

ScheduleOptions warmed_up(Decay decay) {
  return {.base_lr = 0.1,
          .base_batch = 256,
          .global_batch = 2048,
          .warmup_steps = 50,
          .warmup_start_lr = {},
          .decay = decay,
          .milestones = {300, 600, 800},
          .gamma = 0.1,
          .total_steps = 1000,
          .floor_lr = 0.001};
}

TEST(ScheduleTest, ScalesLinearlyWithTheBatch) {
  EXPECT_EQ(Schedule(warmed_up(Decay::kConstant)).peak(), 0.1 * 8);
  EXPECT_EQ(Schedule({.base_lr = 0.1, .base_batch = 3, .global_batch = 3}).lr(0), 0.1);
  EXPECT_EQ(Schedule({.base_lr = 0.1}).lr(12345), 0.1);
}

// Horovod's ramp: lr/k · ((k − 1) · e/W + 1), k the number of times the batch has grown.
TEST(ScheduleTest, WarmsUpAsHorovodDoes) {
  const Schedule schedule(warmed_up(Decay::kConstant));
  for (int t = 0; t <= 50; ++t) {
    const double expected = 0.8 / 8 * (7.0 * t / 50 + 1);
    EXPECT_NEAR(schedule.lr(t), expected, 1e-15)
        << "step " << t;  // a few roundings of numbers below 1
  }
  EXPECT_EQ(schedule.lr(0), 0.1);
  EXPECT_EQ(schedule.lr(50), schedule.peak());
}

TEST(ScheduleTest, WarmUpClimbsSteadilyIntoThePeakOfEveryDecay) {
  for (const Decay decay : {Decay::kConstant, Decay::kStep, Decay::kCosine}) {
    const Schedule schedule(warmed_up(decay));
    const double slope = (schedule.peak() - 0.1) / 50;
    for (int t = 1; t <= 50; ++t) {
      EXPECT_GT(schedule.lr(t), schedule.lr(t - 1));
      EXPECT_NEAR(schedule.lr(t) - schedule.lr(t - 1), slope, 1e-15);
    }
    EXPECT_EQ(schedule.lr(50), schedule.peak());
  }
}

TEST(ScheduleTest, WarmUpStartsWhereItIsTold) {
  const Schedule schedule({.base_lr = 0.5, .warmup_steps = 10, .warmup_start_lr = 0.0});
  EXPECT_EQ(schedule.lr(0), 0.0);
  EXPECT_EQ(schedule.lr(5), 0.25);
  EXPECT_EQ(schedule.lr(10), 0.5);
}

TEST(ScheduleTest, SmallerBatchesDoNotWarmUpFromAbove) {
  const Schedule schedule(
      {.base_lr = 0.8, .base_batch = 256, .global_batch = 64, .warmup_steps = 10});
  EXPECT_EQ(schedule.lr(0), schedule.peak());
}

TEST(ScheduleTest, StepDecaysAtEachMilestone) {
  const Schedule schedule(warmed_up(Decay::kStep));
  EXPECT_EQ(schedule.lr(299), schedule.peak());
  EXPECT_EQ(schedule.lr(300), schedule.peak() * 0.1);
  EXPECT_EQ(schedule.lr(599), schedule.peak() * 0.1);
  EXPECT_EQ(schedule.lr(600), schedule.peak() * 0.1 * 0.1);
  EXPECT_EQ(schedule.lr(1'000'000), schedule.peak() * 0.1 * 0.1 * 0.1);
}

TEST(ScheduleTest, CosineFallsFromPeakToFloorAndStaysThere) {
  const Schedule schedule(warmed_up(Decay::kCosine));
  for (int t = 51; t <= 1000; ++t) {
    const double p = (t - 50) / 950.0;
    const double expected = 0.001 + (0.8 - 0.001) * (1 + std::cos(M_PI * p)) / 2;
    EXPECT_LT(schedule.lr(t), schedule.lr(t - 1)) << "step " << t;
    EXPECT_NEAR(schedule.lr(t), expected, 1e-15) << "step " << t;  // roundings of numbers below 1
  }
  EXPECT_EQ(schedule.lr(1000), 0.001);
  EXPECT_EQ(schedule.lr(5000), 0.001);
}

TEST(ScheduleTest, IsNeverNegative) {
  for (const Decay decay : {Decay::kConstant, Decay::kStep, Decay::kCosine}) {
    for (const double base : {0.0, 1e-300, 0.1, 10.0}) {
      ScheduleOptions options = warmed_up(decay);
      options.base_lr = base;
      options.floor_lr = 0;
      const Schedule schedule(options);
      for (int t = 0; t < 1200; ++t) ASSERT_GE(schedule.lr(t), 0.0);
    }
  }
}

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

void expect_refused(ScheduleOptions options, const std::string& word) {
  try {
    Schedule schedule(std::move(options));
    FAIL() << "accepted a wrong " << word;
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(ScheduleTest, ContradictionsAreRefusedByName) {
  const auto with = [](Decay decay, auto change) {
    ScheduleOptions options = warmed_up(decay);
    change(options);
    return options;
  };
  using Options = ScheduleOptions;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused(with(Decay::kConstant, [&](Options& o) { o.base_lr = nan; }), "base_lr");
  expect_refused(with(Decay::kConstant, [](Options& o) { o.base_lr = -1; }), "base_lr");
  expect_refused(with(Decay::kConstant, [](Options& o) { o.base_batch = 0; }), "base_batch");
  expect_refused(with(Decay::kConstant, [](Options& o) { o.warmup_steps = -1; }), "warmup_steps");
  expect_refused(with(Decay::kConstant, [](Options& o) { o.warmup_start_lr = -0.1; }),
                 "warmup_start_lr");
  expect_refused(with(Decay::kStep, [](Options& o) { o.milestones = {49}; }), "milestone");
  expect_refused(with(Decay::kStep, [](Options& o) { o.milestones = {60, 60}; }), "milestone");
  expect_refused(with(Decay::kStep, [](Options& o) { o.gamma = -1; }), "gamma");
  expect_refused(with(Decay::kCosine, [](Options& o) { o.total_steps = 50; }), "total_steps");
  expect_refused(with(Decay::kCosine, [](Options& o) { o.floor_lr = 0.9; }), "floor_lr");
  EXPECT_THROW(Schedule(ScheduleOptions{}).lr(-1), BadInput);
}

}  // namespace
}  // namespace lockstep::plan
