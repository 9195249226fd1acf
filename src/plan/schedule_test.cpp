#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/schedule.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using namespace lr_scheduler;

LargeBatchOptions eight_times() {
  return {.lr = 0.1, .base_batch = 256, .global_batch = 2048, .warmup_steps = 50};
}

TEST(LargeBatch, ScalesByTheRule) {
  LargeBatchOptions options = eight_times();
  EXPECT_EQ(large_batch(options)(50), 0.1 * 8);
  options.scaling = Scaling::kSquareRoot;
  EXPECT_EQ(large_batch(options)(50), 0.1 * std::sqrt(8.0));
  EXPECT_EQ(large_batch({.lr = 0.1, .base_batch = 3, .global_batch = 3})(0), 0.1);
}

// Horovod's ramp: lr/k · ((k − 1) · e/W + 1), k the number of times the batch has grown.
TEST(LargeBatch, WarmsUpAsHorovodDoes) {
  const Schedule rate = large_batch(eight_times());
  for (int t = 0; t <= 50; ++t) {
    const double expected = 0.8 / 8 * (7.0 * t / 50 + 1);
    EXPECT_NEAR(rate(t), expected, 1e-15) << "step " << t;  // a few roundings of numbers below 1
  }
  EXPECT_EQ(rate(0), 0.1);
  EXPECT_EQ(rate(50), 0.8);
  EXPECT_EQ(rate(1'000'000), 0.8);
}

TEST(LargeBatch, WarmUpStartsWhereItIsToldAndNeverAboveThePeak) {
  LargeBatchOptions options = {
      .lr = 0.5, .base_batch = 1, .global_batch = 1, .warmup_steps = 10, .start_lr = 0.0};
  EXPECT_EQ(large_batch(options)(0), 0.0);
  EXPECT_EQ(large_batch(options)(5), 0.25);
  EXPECT_EQ(large_batch(options)(10), 0.5);
  options = {.lr = 0.8, .base_batch = 256, .global_batch = 64, .warmup_steps = 10};
  EXPECT_EQ(large_batch(options)(0), 0.8 / 4);
}

TEST(LargeBatch, WhatComesThenGetsThePeakAndCountsFromTheEndOfTheWarmUp) {
  LargeBatchOptions options = eight_times();
  options.then = [](double peak) { return CosineAnnealingLR{.lr = peak, .t_max = 950}; };
  const Schedule rate = large_batch(options);
  EXPECT_EQ(rate(50), 0.8);
  EXPECT_NEAR(rate(525), 0.4, 1e-15);
  EXPECT_EQ(rate(1000), 0);
}

TEST(LargeBatch, SaysWhatItDid) {
  LargeBatchOptions options = eight_times();
  options.then = [](double peak) { return StepLR{.lr = peak, .step_size = 30}; };
  EXPECT_EQ(large_batch(options).text(),
            "0.1 for a batch of 256 is 0.8 for 2048 (linear); warm-up from 0.1 over 50 steps; then "
            "StepLR: 0.8, times 0.1 every 30 steps");
}

TEST(ScheduleTest, CountsEpochsWhereItIsTold) {
  const Schedule rate = per_epoch(StepLR{.lr = 1, .step_size = 2, .gamma = 0.5}, 10);
  EXPECT_EQ(rate(19), 1);
  EXPECT_EQ(rate(20), 0.5);
  EXPECT_EQ(rate(40), 0.25);
}

TEST(ScheduleTest, OneAfterTheOtherCountsFromItsMilestone) {
  const Schedule rate = SequentialLR{
      {LinearLR{.lr = 1, .start_factor = 0.5, .total_iters = 4}, StepLR{.lr = 1, .step_size = 3}},
      {4}};
  EXPECT_EQ(rate(0), 0.5);
  EXPECT_EQ(rate(2), 0.75);
  EXPECT_EQ(rate(4), 1);
  EXPECT_EQ(rate(6), 1);
  EXPECT_EQ(rate(7), 0.1);
  EXPECT_THAT(rate.text(), HasSubstr("; from step 4 on StepLR"));
}

TEST(ScheduleTest, StepsThatAreFarAwayHaveARate) {
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  EXPECT_GE(Schedule(CosineAnnealingLR{.lr = 1, .t_max = 7})(far), 0);
  EXPECT_GE(Schedule(CosineAnnealingWarmRestarts{.lr = 1, .t_0 = 7, .t_mult = 3})(far), 0);
  EXPECT_GE(Schedule(CosineAnnealingWarmRestarts{.lr = 1, .t_0 = 7})(far), 0);
  EXPECT_EQ(Schedule(ExponentialLR{.lr = 1, .gamma = 0.9})(far), 0);
  EXPECT_EQ(Schedule(PolynomialLR{.lr = 1, .power = 0.9})(far), 0);
}

// A phase of no length, where PyTorch divides by zero.
TEST(ScheduleTest, ACycleMayBeginAtItsPeak) {
  const Schedule rate = OneCycleLR{.max_lr = 1, .total_steps = 10, .pct_start = 0.1};
  EXPECT_EQ(rate(0), 1);
  EXPECT_LT(rate(1), 1);
}

template <typename Options>
void expect_refused(const Options& options, const std::string& word) {
  try {
    const Schedule schedule = options;
    FAIL() << "accepted a wrong " << word;
  } catch (const BadInput& error) {
    EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

TEST(ScheduleTest, OptionsOutOfRangeAreRefusedByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused(Constant{.lr = nan}, "lr");
  expect_refused(Constant{.lr = -1}, "lr");
  expect_refused(ConstantLR{.lr = 1, .factor = 2}, "factor");
  expect_refused(LinearLR{.lr = 1, .start_factor = 0}, "start_factor");
  expect_refused(LinearLR{.lr = 1, .total_iters = 0}, "total_iters");
  expect_refused(StepLR{.lr = 1}, "step_size");
  expect_refused(MultiStepLR{.lr = 1, .milestones = {60, 60}}, "milestone 60");
  expect_refused(MultiStepLR{.lr = 1, .milestones = {0}}, "milestone 0");
  expect_refused(ExponentialLR{.lr = 1}, "gamma");
  expect_refused(PolynomialLR{.lr = 1, .power = -1}, "power");
  expect_refused(CosineAnnealingLR{.lr = 1}, "t_max");
  expect_refused(CosineAnnealingWarmRestarts{.lr = 1, .t_0 = 3, .t_mult = 0}, "t_mult");
  expect_refused(OneCycleLR{.max_lr = 1, .total_steps = 10, .pct_start = 1.5}, "pct_start");
  expect_refused(OneCycleLR{.max_lr = 1, .total_steps = 10, .div_factor = 0}, "div_factor");
  expect_refused(LambdaLR{.lr = 1}, "lr_lambda");
  expect_refused(SequentialLR{}, "0 schedulers and 0 milestones");
}

TEST(LargeBatch, OptionsOutOfRangeAreRefusedByName) {
  const auto refused = [](auto change, const std::string& word) {
    LargeBatchOptions options = eight_times();
    change(options);
    try {
      large_batch(options);
      ADD_FAILURE() << "accepted a wrong " << word;
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr(word));
    }
  };
  refused([](auto& o) { o.base_batch = 0; }, "base_batch");
  refused([](auto& o) { o.global_batch = -1; }, "global_batch");
  refused([](auto& o) { o.warmup_steps = -1; }, "warmup_steps");
  refused([](auto& o) { o.start_lr = -0.1; }, "start_lr");
  refused([](auto& o) { o.lr = -0.1; }, "lr");
}

TEST(ScheduleTest, AStepThatHasNoRateIsRefusedInOneLine) {
  EXPECT_THROW(Schedule(Constant{1})(-1), BadInput);
  const Schedule cycle = OneCycleLR{.max_lr = 1, .total_steps = 10};
  EXPECT_GT(cycle(9), 0);
  try {
    cycle(10);
    FAIL() << "there is no step 10";
  } catch (const BadInput& error) {
    EXPECT_STREQ(error.what(), "OneCycleLR has no rate for step 10: it ends with step 9");
  }
  const Schedule negative = LambdaLR{.lr = 1, .lr_lambda = [](std::int64_t) { return -1.0; }};
  EXPECT_THROW(negative(0), BadInput);
}

TEST(Plateau, ANumberThatIsNoneIsNoProgress) {
  ReduceLROnPlateau plateau({.patience = 0});
  EXPECT_EQ(plateau.step(1, 0.1), 0.1);
  EXPECT_EQ(plateau.step(std::nan(""), 0.1), 0.1 * 0.1);
}

TEST(Plateau, GoesOnFromItsState) {
  ReduceLROnPlateau whole({.patience = 2, .cooldown = 1});
  ReduceLROnPlateau first({.patience = 2, .cooldown = 1});
  double rate = 1, other = 1;
  for (int i = 0; i < 12; ++i) {
    ReduceLROnPlateau again({.patience = 2, .cooldown = 1});
    again.load_state(first.state());
    rate = whole.step(1 + i % 2, rate);
    other = again.step(1 + i % 2, other);
    first = again;
    EXPECT_EQ(rate, other);
  }
  EXPECT_LT(rate, 0.1);
}

TEST(Plateau, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW(ReduceLROnPlateau({.factor = 1}), BadInput);
  EXPECT_THROW(ReduceLROnPlateau({.patience = -1}), BadInput);
  EXPECT_THROW(ReduceLROnPlateau({.threshold = -1}), BadInput);
}

}  // namespace
}  // namespace lockstep
