#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>
#include <lockstep/schedule.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "plan/elementary.h"

namespace lockstep {
namespace {

using plan::cos_pi;
using plan::power;

// A quotient of two whole numbers.
double share(std::int64_t part, std::int64_t all) {
  return static_cast<double>(part) / static_cast<double>(all);
}

void check(bool good, const char* option, double value, const char* range) {
  if (!good) throw BadInput(fmt::format("{} is {:g}; it must be {}", option, value, range));
}
void check_rate(double rate, const char* option) {
  check(std::isfinite(rate) && rate >= 0, option, rate, "a finite number, 0 or more");
}
void check_count(std::int64_t count, const char* option) {
  if (count < 1) throw BadInput(fmt::format("{} is {}; it must be 1 or more", option, count));
}
void check_ascending(const std::vector<std::int64_t>& milestones) {
  std::int64_t least = 1;
  for (const std::int64_t milestone : milestones) {
    if (milestone < least) {
      throw BadInput(
          fmt::format("milestone {} is below {}: milestones ascend, and the first is 1 or more",
                      milestone, least));
    }
    least = milestone + 1;
  }
}

// Half a cosine from `high`, where `done` is 0, to `low`, where it is 1.
double half_cosine(double high, double low, double done) {
  return low + (high - low) * ((1 + cos_pi(done)) / 2);
}
double straight(double from, double to, double done) {
  return from + (to - from) * done;
}

// A stretch of a OneCycleLR. It ends at a fraction of a step if pct_start · total_steps is one.
struct CyclePhase {
  double end = 0;
  double from = 0;
  double to = 0;
};

std::vector<CyclePhase> phases_of(const lr_scheduler::OneCycleLR& options) {
  const double low = options.max_lr / options.div_factor;
  const double least = low / options.final_div_factor;
  const auto last = static_cast<double>(options.total_steps - 1);
  const double up = options.pct_start * static_cast<double>(options.total_steps) - 1;
  if (!options.three_phase) return {{up, low, options.max_lr}, {last, options.max_lr, least}};
  const double down = 2 * options.pct_start * static_cast<double>(options.total_steps) - 2;
  return {{up, low, options.max_lr}, {down, options.max_lr, low}, {last, low, least}};
}

double one_cycle(const std::vector<CyclePhase>& phases, bool cosine, std::int64_t step) {
  const auto now = static_cast<double>(step);
  double begin = 0;
  for (const CyclePhase& phase : phases) {
    if (now > phase.end && &phase != &phases.back()) {
      begin = phase.end;
      continue;
    }
    const double done = phase.end > begin ? (now - begin) / (phase.end - begin) : 1;
    return cosine ? half_cosine(phase.from, phase.to, done) : straight(phase.from, phase.to, done);
  }
  return 0;  // there is always a last phase
}

}  // namespace

Schedule::Schedule(std::function<double(std::int64_t)> rate, std::string text)
    : rate_(std::move(rate)), text_(std::move(text)) {
  if (!rate_) throw BadInput("a schedule needs a function: this one is empty");
}

double Schedule::operator()(std::int64_t step) const {
  if (step < 0) throw BadInput(fmt::format("step {}: steps count from 0", step));
  const double rate = rate_(step);
  if (!std::isfinite(rate) || rate < 0)
    throw BadInput(fmt::format("the learning rate of step {} is {} ({})", step, rate, text_));
  return rate;
}

Schedule::Schedule(const lr_scheduler::Constant& options)
    : Schedule([lr = options.lr](std::int64_t) { return lr; },
               fmt::format("{:g}, constant", options.lr)) {
  check_rate(options.lr, "lr");
}

Schedule::Schedule(const lr_scheduler::ConstantLR& options)
    : Schedule([o = options](
                   std::int64_t step) { return step < o.total_iters ? o.lr * o.factor : o.lr; },
               fmt::format("ConstantLR: {:g}, times {:g} for {} steps", options.lr, options.factor,
                           options.total_iters)) {
  check_rate(options.lr, "lr");
  check(options.factor >= 0 && options.factor <= 1, "factor", options.factor, "0 to 1");
  check_count(options.total_iters, "total_iters");
}

Schedule::Schedule(const lr_scheduler::LinearLR& options)
    : Schedule(
          [o = options](std::int64_t step) {
            const double done = share(std::min(step, o.total_iters), o.total_iters);
            return o.lr * straight(o.start_factor, o.end_factor, done);
          },
          fmt::format("LinearLR: {:g}, times {:g} to {:g} over {} steps", options.lr,
                      options.start_factor, options.end_factor, options.total_iters)) {
  check_rate(options.lr, "lr");
  check(options.start_factor > 0 && options.start_factor <= 1, "start_factor", options.start_factor,
        "above 0, at most 1");
  check(options.end_factor >= 0 && options.end_factor <= 1, "end_factor", options.end_factor,
        "0 to 1");
  check_count(options.total_iters, "total_iters");
}

Schedule::Schedule(const lr_scheduler::StepLR& options)
    : Schedule(
          [o = options](std::int64_t step) {
            const std::int64_t times = step / o.step_size;
            return o.lr * power(o.gamma, static_cast<double>(times));
          },
          fmt::format("StepLR: {:g}, times {:g} every {} steps", options.lr, options.gamma,
                      options.step_size)) {
  check_rate(options.lr, "lr");
  check_count(options.step_size, "step_size");
  check_rate(options.gamma, "gamma");
}

Schedule::Schedule(const lr_scheduler::MultiStepLR& options)
    : Schedule(
          [o = options](std::int64_t step) {
            const auto reached = std::upper_bound(o.milestones.begin(), o.milestones.end(), step) -
                                 o.milestones.begin();
            return o.lr * power(o.gamma, static_cast<double>(reached));
          },
          fmt::format("MultiStepLR: {:g}, times {:g} at steps {}", options.lr, options.gamma,
                      fmt::join(options.milestones, ", "))) {
  check_rate(options.lr, "lr");
  check_ascending(options.milestones);
  check_rate(options.gamma, "gamma");
}

Schedule::Schedule(const lr_scheduler::ExponentialLR& options)
    : Schedule(
          [o = options](std::int64_t step) {
            return o.lr * power(o.gamma, static_cast<double>(step));
          },
          fmt::format("ExponentialLR: {:g}, times {:g} every step", options.lr, options.gamma)) {
  check_rate(options.lr, "lr");
  check(std::isfinite(options.gamma) && options.gamma > 0, "gamma", options.gamma,
        "a finite number above 0");
}

Schedule::Schedule(const lr_scheduler::PolynomialLR& options)
    : Schedule(
          [o = options](std::int64_t step) {
            const std::int64_t left = o.total_iters - std::min(step, o.total_iters);
            return o.lr * power(share(left, o.total_iters), o.power);
          },
          fmt::format("PolynomialLR: {:g} to 0 over {} steps, power {:g}", options.lr,
                      options.total_iters, options.power)) {
  check_rate(options.lr, "lr");
  check_count(options.total_iters, "total_iters");
  check(std::isfinite(options.power) && options.power > 0, "power", options.power,
        "a finite number above 0");
}

Schedule::Schedule(const lr_scheduler::CosineAnnealingLR& options)
    : Schedule(
          [o = options](std::int64_t step) {
            const std::int64_t within = step % (2 * o.t_max);
            const std::int64_t down = std::min(within, 2 * o.t_max - within);
            return half_cosine(o.lr, o.eta_min, share(down, o.t_max));
          },
          fmt::format("CosineAnnealingLR: {:g} to {:g} over {} steps", options.lr, options.eta_min,
                      options.t_max)) {
  check_rate(options.lr, "lr");
  check_rate(options.eta_min, "eta_min");
  check_count(options.t_max, "t_max");
  if (options.t_max > std::numeric_limits<std::int64_t>::max() / 2)
    throw BadInput(fmt::format("t_max is {}: too many steps", options.t_max));
}

Schedule::Schedule(const lr_scheduler::CosineAnnealingWarmRestarts& options)
    : Schedule(
          [o = options](std::int64_t step) {
            std::int64_t length = o.t_0;
            if (o.t_mult == 1) step %= length;
            while (step >= length) {
              step -= length;
              constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
              length = length > kMost / o.t_mult ? kMost : length * o.t_mult;
            }
            return half_cosine(o.lr, o.eta_min, share(step, length));
          },
          fmt::format("CosineAnnealingWarmRestarts: {:g} to {:g} over {} steps, then {} times as "
                      "many, and so on",
                      options.lr, options.eta_min, options.t_0, options.t_mult)) {
  check_rate(options.lr, "lr");
  check_rate(options.eta_min, "eta_min");
  check_count(options.t_0, "t_0");
  check_count(options.t_mult, "t_mult");
}

Schedule::Schedule(const lr_scheduler::OneCycleLR& options)
    : Schedule(
          [phases = phases_of(options), last = options.total_steps - 1,
           cosine = options.anneal_strategy ==
                    lr_scheduler::OneCycleLR::Anneal::kCos](std::int64_t step) {
            if (step > last) {
              throw BadInput(fmt::format("OneCycleLR has no rate for step {}: it ends with step {}",
                                         step, last));
            }
            return one_cycle(phases, cosine, step);
          },
          fmt::format("OneCycleLR: up to {:g} and down again in {} steps", options.max_lr,
                      options.total_steps)) {
  check_rate(options.max_lr, "max_lr");
  check_count(options.total_steps, "total_steps");
  check(options.pct_start >= 0 && options.pct_start <= (options.three_phase ? 0.5 : 1), "pct_start",
        options.pct_start, options.three_phase ? "0 to 0.5 with three_phase" : "0 to 1");
  check(std::isfinite(options.div_factor) && options.div_factor > 0, "div_factor",
        options.div_factor, "a finite number above 0");
  check(std::isfinite(options.final_div_factor) && options.final_div_factor > 0, "final_div_factor",
        options.final_div_factor, "a finite number above 0");
}

Schedule::Schedule(const lr_scheduler::LambdaLR& options)
    : Schedule([o = options](std::int64_t step) { return o.lr * o.lr_lambda(step); },
               fmt::format("LambdaLR: {:g} times a function of the step", options.lr)) {
  check_rate(options.lr, "lr");
  if (!options.lr_lambda) throw BadInput("lr_lambda is empty; it must be a function");
}

Schedule::Schedule(const lr_scheduler::SequentialLR& options)
    : Schedule(
          [o = options](std::int64_t step) {
            const auto next = std::upper_bound(o.milestones.begin(), o.milestones.end(), step);
            const auto index = static_cast<std::size_t>(next - o.milestones.begin());
            return o.schedulers[index](index == 0 ? step : step - *(next - 1));
          },
          "") {
  if (options.schedulers.size() != options.milestones.size() + 1) {
    throw BadInput(
        fmt::format("SequentialLR has {} schedulers and {} milestones; it needs a milestone "
                    "between every two",
                    options.schedulers.size(), options.milestones.size()));
  }
  check_ascending(options.milestones);
  text_ = options.schedulers[0].text();
  for (std::size_t i = 0; i < options.milestones.size(); ++i) {
    text_ += fmt::format("; from step {} on {}", options.milestones[i],
                         options.schedulers[i + 1].text());
  }
}

Schedule per_epoch(const Schedule& schedule, std::int64_t steps_per_epoch) {
  check_count(steps_per_epoch, "steps_per_epoch");
  return {[=](std::int64_t step) { return schedule(step / steps_per_epoch); },
          fmt::format("{}, counted in epochs of {} steps", schedule.text(), steps_per_epoch)};
}

namespace {

double peak_of(const LargeBatchOptions& options) {
  check_rate(options.lr, "lr");
  check_count(options.base_batch, "base_batch");
  check_count(options.global_batch, "global_batch");
  // The quotient is computed first: it is exactly 1 if the batches are equal.
  const double times = share(options.global_batch, options.base_batch);
  // IEEE 754 demands the nearest double of a square root, so it has one value everywhere.
  const double peak = options.lr * (options.scaling == Scaling::kLinear ? times : std::sqrt(times));
  check_rate(peak, "lr for the larger batch");
  return peak;
}

}  // namespace

Schedule large_batch(const LargeBatchOptions& options) {
  const double peak = peak_of(options);
  const double start = options.start_lr.value_or(std::min(options.lr, peak));
  const std::int64_t steps = options.warmup_steps;
  check_rate(start, "start_lr");
  if (steps < 0) throw BadInput(fmt::format("warmup_steps is {}; 0 means none", steps));
  const Schedule then = options.then ? options.then(peak) : lr_scheduler::Constant{peak};
  std::string text =
      options.base_batch == options.global_batch
          ? fmt::format("{:g}", peak)
          : fmt::format("{:g} for a batch of {} is {:g} for {} ({})", options.lr,
                        options.base_batch, peak, options.global_batch,
                        options.scaling == Scaling::kLinear ? "linear" : "square root");
  if (steps > 0) text += fmt::format("; warm-up from {:g} over {} steps", start, steps);
  if (options.then) text += "; then " + then.text();
  return {[=](std::int64_t step) {
            return step < steps ? straight(start, peak, share(step, steps)) : then(step - steps);
          },
          std::move(text)};
}

ReduceLROnPlateau::ReduceLROnPlateau(const ReduceLROnPlateauOptions& options) : options_(options) {
  check(options.factor >= 0 && options.factor < 1, "factor", options.factor, "at least 0, below 1");
  check_rate(options.threshold, "threshold");
  check_rate(options.min_lr, "min_lr");
  check_rate(options.eps, "eps");
  if (options.patience < 0 || options.cooldown < 0) {
    throw BadInput(fmt::format("patience is {} and cooldown {}; they must be 0 or more",
                               options.patience, options.cooldown));
  }
  const double worst = std::numeric_limits<double>::infinity();
  state_ = {options.mode == ReduceLROnPlateauOptions::Mode::kMin ? worst : -worst, 0, 0};
}

std::string ReduceLROnPlateau::text() const {
  const bool smaller = options_.mode == ReduceLROnPlateauOptions::Mode::kMin;
  const bool relative = options_.threshold_mode == ReduceLROnPlateauOptions::ThresholdMode::kRel;
  return fmt::format(
      "{} is better; factor {}, patience {}, threshold {} ({}), cooldown {}, min_lr {}, eps {}",
      smaller ? "smaller" : "larger", options_.factor, options_.patience, options_.threshold,
      relative ? "relative" : "absolute", options_.cooldown, options_.min_lr, options_.eps);
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const double best = state_.front();
  const bool relative = options_.threshold_mode == ReduceLROnPlateauOptions::ThresholdMode::kRel;
  const double threshold = options_.threshold;
  if (options_.mode == ReduceLROnPlateauOptions::Mode::kMin)
    return metric < (relative ? best * (1 - threshold) : best - threshold);
  return metric > (relative ? best * (1 + threshold) : best + threshold);
}

double ReduceLROnPlateau::step(double metric, double lr) {
  auto& [best, bad, waiting] = state_;
  if (is_better(metric)) {
    best = metric;
    bad = 0;
  } else {
    bad += 1;
  }
  if (waiting > 0) {
    waiting -= 1;
    bad = 0;
  }
  if (bad <= static_cast<double>(options_.patience)) return lr;
  waiting = static_cast<double>(options_.cooldown);
  bad = 0;
  const double lower = std::max(lr * options_.factor, options_.min_lr);
  return lr - lower > options_.eps ? lower : lr;
}

}  // namespace lockstep
