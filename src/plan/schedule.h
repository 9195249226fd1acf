// The learning rate of a step, as a pure function of the job's options and the step.
//
//   scaling    k = global_batch / base_batch, peak = base_lr · k          the linear scaling rule
//   warm-up    lr(t) = start + (peak − start) · t/W  for t < W            then lr(W) = peak
//              start is min(base_lr, peak) unless set: the ramp of Goyal et al. and of Horovod,
//              which is peak/k · ((k − 1) · t/W + 1)
//   constant   lr(t) = peak
//   step       lr(t) = peak · gamma^m                                     m milestones are ≤ t
//   cosine     lr(t) = floor + (peak − floor) · (1 + cos(π·p)) / 2        p = (t − W) / (T − W)
//              and floor from step T on
//
// It uses only + − · / of doubles, which give the same bits on every machine. That is why the
// cosine is our own: the one of the C library may differ in the last bit between processors, and
// workers must agree on every bit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::plan {

enum class Decay : std::uint8_t { kConstant, kStep, kCosine };

// Steps are counted over the whole job, from 0. All options decide the result.
struct ScheduleOptions {
  double base_lr = 0.1;

  // The global batch that base_lr was chosen for, and that of the job. If they are equal, there is
  // no scaling.
  std::int64_t base_batch = 1;
  std::int64_t global_batch = 1;

  // How many steps the learning rate rises, and from where. Longer is safer for large k. Without
  // scaling the default start is the peak itself, so set a start for a ramp.
  std::int64_t warmup_steps = 0;
  std::optional<double> warmup_start_lr;

  Decay decay = Decay::kConstant;
  std::vector<std::int64_t> milestones;  // kStep: ascending, none inside the warm-up
  double gamma = 0.1;                    // kStep
  std::int64_t total_steps = 0;          // kCosine: T, beyond the warm-up
  double floor_lr = 0;                   // kCosine: at most the peak
};

// Computes the learning rate of any step.
//
// Threads:   immutable; any thread may call.
// Blocking:  never.
// Failure:   the constructor throws BadInput, with the names, for options that contradict each
//            other. lr() throws it for a negative step.
// Ownership: a value.
class Schedule {
 public:
  explicit Schedule(ScheduleOptions options);

  double peak() const { return peak_; }
  double lr(std::int64_t step) const;

 private:
  double warmup_lr(std::int64_t step) const;
  double decayed_lr(std::int64_t step) const;

  ScheduleOptions options_;
  double peak_ = 0;
  double start_ = 0;
};

// cos(π · x) for 0 ≤ x ≤ 1, with + − · / only. The error is at most 2^-52.
double cos_pi(double x);

}  // namespace lockstep::plan
