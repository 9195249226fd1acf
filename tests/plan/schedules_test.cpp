// Schedules beside those of PyTorch, which runs here too (schedules.py).
#include <gtest/gtest.h>
#include <lockstep/schedule.h>

#include <map>
#include <sstream>

#include "tests/launcher/command.h"
#include "tests/support/python.h"

namespace lockstep::testing {
namespace {

using namespace lr_scheduler;

constexpr int kSteps = 100;

using Rates = std::map<std::string, std::vector<double>>;

Rates rates_of_pytorch(const std::string& python) {
  Command command({python, SCHEDULES_SCRIPT, std::to_string(kSteps)});
  EXPECT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  Rates all;
  std::istringstream lines(command.out());
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (double rate = 0; words >> rate;) all[name].push_back(rate);
  }
  return all;
}

std::map<std::string, Schedule> schedules() {
  OneCycleLR three{.max_lr = 0.4,
                   .total_steps = kSteps,
                   .pct_start = 0.25,
                   .anneal_strategy = OneCycleLR::Anneal::kLinear,
                   .div_factor = 10,
                   .final_div_factor = 50,
                   .three_phase = true};
  return {
      {"constant", ConstantLR{.lr = 0.1}},
      {"linear", LinearLR{.lr = 0.1}},
      {"linear-down",
       LinearLR{.lr = 0.1, .start_factor = 1, .end_factor = 0.01, .total_iters = 50}},
      {"step", StepLR{.lr = 0.1, .step_size = 7, .gamma = 0.5}},
      {"multi-step", MultiStepLR{.lr = 0.1, .milestones = {3, 10, 11, 60}}},
      {"exponential", ExponentialLR{.lr = 0.1, .gamma = 0.97}},
      {"cosine", CosineAnnealingLR{.lr = 0.1, .t_max = 20, .eta_min = 0.001}},
      {"restarts", CosineAnnealingWarmRestarts{.lr = 0.1, .t_0 = 9}},
      {"restarts-growing",
       CosineAnnealingWarmRestarts{.lr = 0.1, .t_0 = 5, .t_mult = 2, .eta_min = 0.002}},
      {"one-cycle", OneCycleLR{.max_lr = 0.4, .total_steps = kSteps}},
      {"one-cycle-three", three},
      {"polynomial", PolynomialLR{.lr = 0.1}},
      {"polynomial-0.9", PolynomialLR{.lr = 0.1, .total_iters = 80, .power = 0.9}},
      {"lambda", LambdaLR{.lr = 0.1, .lr_lambda = [](std::int64_t t) { return 1.0 / (1 + t); }}},
      {"sequential", SequentialLR{{LinearLR{.lr = 0.1, .start_factor = 0.25, .total_iters = 10},
                                   ExponentialLR{.lr = 0.1, .gamma = 0.9}},
                                  {10}}},
  };
}

std::vector<double> rates_of(ReduceLROnPlateau plateau) {
  const std::vector<double> metrics = {5,   4,   4,   4,   4,   3.9999, 3,   3,   3,
                                       3,   3,   3,   2.5, 2.6, 2.7,    2.5, 2.5, 2.5,
                                       2.5, 2.5, 2.4, 2.4, 2.4, 2.4,    2.4};
  std::vector<double> rates;
  double rate = 0.1;
  for (const double metric : metrics) rates.push_back(rate = plateau.step(metric, rate));
  return rates;
}

// PyTorch multiplies the rate of the step before, so its error grows with the steps.
void expect_close(const std::vector<double>& ours, const std::vector<double>& theirs,
                  const std::string& name) {
  ASSERT_EQ(ours.size(), theirs.size()) << name;
  for (std::size_t i = 0; i < ours.size(); ++i)
    ASSERT_NEAR(ours[i], theirs[i], 1e-13) << name << ", step " << i;
}

TEST(SchedulesOfPyTorch, HaveTheSameNumbers) {
  const std::string python = python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no PyTorch to compare with: make deps-test installs it";
  Rates theirs = rates_of_pytorch(python);
  for (const auto& [name, schedule] : schedules()) {
    std::vector<double> ours;
    for (int step = 0; step < kSteps; ++step) ours.push_back(schedule(step));
    expect_close(ours, theirs[name], name);
    theirs.erase(name);
  }
  using Options = ReduceLROnPlateauOptions;
  expect_close(rates_of(ReduceLROnPlateau({.patience = 2})), theirs["plateau"], "plateau");
  expect_close(rates_of(ReduceLROnPlateau({.mode = Options::Mode::kMax,
                                           .factor = 0.5,
                                           .patience = 1,
                                           .threshold = 0.5,
                                           .threshold_mode = Options::ThresholdMode::kAbs,
                                           .cooldown = 2,
                                           .min_lr = 0.01})),
               theirs["plateau-max"], "plateau-max");
  EXPECT_EQ(theirs.size(), 2U) << "a schedule of PyTorch's was not compared";
}

}  // namespace
}  // namespace lockstep::testing
