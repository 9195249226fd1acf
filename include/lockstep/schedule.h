// Learning rates that are functions of the step. Names, defaults and numbers are those of
// torch.optim.lr_scheduler.
//
//   namespace lrs = lockstep::lr_scheduler;
//   lockstep::Schedule rate = lrs::CosineAnnealingLR{.lr = 0.1, .t_max = 1000};
//   optimizer.set_lr(rate(step));                           // in a loop of your own
//   lockstep::Step(job, …, loss, {.learning_rate = rate});  // for a Step or a Trainer
//
// A schedule has no state: a job that goes on from a checkpoint asks for the rate of its next step.
// It computes with + − · / alone, which give the same bits on every processor.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::steps {
class JobCore;
}

namespace lockstep {

class Schedule;

// The options of each kind of schedule. `lr` is what the schedule starts from: the optimizer's rate
// in PyTorch. Steps count from 0. PyTorch's schedulers count calls of step(), which most programs
// make once an epoch: per_epoch() is for these.
namespace lr_scheduler {

struct Constant {
  double lr = 0;
};
// lr · factor before step total_iters, then lr.
struct ConstantLR {
  double lr = 0;
  double factor = 1.0 / 3;
  std::int64_t total_iters = 5;
};
// From lr · start_factor to lr · end_factor, in total_iters equal steps.
struct LinearLR {
  double lr = 0;
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_iters = 5;
};
// lr · gamma^(step / step_size).
struct StepLR {
  double lr = 0;
  std::int64_t step_size = 0;
  double gamma = 0.1;
};
// lr · gamma^(number of milestones that are reached).
struct MultiStepLR {
  double lr = 0;
  std::vector<std::int64_t> milestones;  // ascending
  double gamma = 0.1;
};
// lr · gamma^step.
struct ExponentialLR {
  double lr = 0;
  double gamma = 0;
};
// lr · (1 − step / total_iters)^power, and 0 from step total_iters on.
struct PolynomialLR {
  double lr = 0;
  std::int64_t total_iters = 5;
  double power = 1;
};
// From lr to eta_min on half a cosine of t_max steps. Beyond, it rises again, as in PyTorch.
struct CosineAnnealingLR {
  double lr = 0;
  std::int64_t t_max = 0;
  double eta_min = 0;
};
// The same over t_0 steps, then again from lr over t_0 · t_mult steps, and so on.
struct CosineAnnealingWarmRestarts {
  double lr = 0;
  std::int64_t t_0 = 0;
  std::int64_t t_mult = 1;
  double eta_min = 0;
};
// From max_lr / div_factor up to max_lr in the first pct_start of all steps, then down to
// max_lr / div_factor / final_div_factor. With three_phase: down as far as it went up, then on to
// the end. Asked for a step beyond total_steps, it throws BadInput. The momentum stays as it is:
// compare with PyTorch's cycle_momentum=False.
struct OneCycleLR {
  enum class Anneal : std::uint8_t { kCos, kLinear };
  double max_lr = 0;
  std::int64_t total_steps = 0;
  double pct_start = 0.3;
  Anneal anneal_strategy = Anneal::kCos;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};
// lr · lr_lambda(step). The function must give the same bits on every worker.
struct LambdaLR {
  double lr = 0;
  std::function<double(std::int64_t step)> lr_lambda;
};
// One schedule after the other. The one that begins at a milestone counts its steps from there.
struct SequentialLR {
  std::vector<Schedule> schedulers;
  std::vector<std::int64_t> milestones;  // ascending, one fewer than schedulers
};

}  // namespace lr_scheduler

// The learning rate of each step.
//
// Threads:   immutable; any thread may call.
// Blocking:  never.
// Failure:   a constructor throws BadInput, with the option's name, for options out of range. A call
//            throws it for a negative step, for a step after the end of a OneCycleLR, and if the
//            rate is not finite or negative.
// Ownership: a value. Copies share what it holds.
class Schedule {
 public:
  Schedule(const lr_scheduler::Constant& options);                     // NOLINT: implicit, so
  Schedule(const lr_scheduler::ConstantLR& options);                   // NOLINT: that options are
  Schedule(const lr_scheduler::LinearLR& options);                     // NOLINT: a schedule
  Schedule(const lr_scheduler::StepLR& options);                       // NOLINT
  Schedule(const lr_scheduler::MultiStepLR& options);                  // NOLINT
  Schedule(const lr_scheduler::ExponentialLR& options);                // NOLINT
  Schedule(const lr_scheduler::PolynomialLR& options);                 // NOLINT
  Schedule(const lr_scheduler::CosineAnnealingLR& options);            // NOLINT
  Schedule(const lr_scheduler::CosineAnnealingWarmRestarts& options);  // NOLINT
  Schedule(const lr_scheduler::OneCycleLR& options);                   // NOLINT
  Schedule(const lr_scheduler::LambdaLR& options);                     // NOLINT
  Schedule(const lr_scheduler::SequentialLR& options);                 // NOLINT
  Schedule(std::function<double(std::int64_t)> rate, std::string text);

  double operator()(std::int64_t step) const;

  // What it does, in one line, for logs: "StepLR: 0.1, times 0.1 every 30 steps".
  const std::string& text() const { return text_; }

 private:
  std::function<double(std::int64_t)> rate_;
  std::string text_;
};

// Counts epochs in place of steps: the rate of a step is schedule(step / steps_per_epoch).
Schedule per_epoch(const Schedule& schedule, std::int64_t steps_per_epoch);

// How the rate grows if the batch grows k times.
enum class Scaling : std::uint8_t {
  kLinear,      // k times: for SGD (Goyal et al.)
  kSquareRoot,  // √k times: for Adam and its kin
};

struct LargeBatchOptions {
  double lr = 0;                  // chosen for …
  std::int64_t base_batch = 0;    // … a global batch of this size
  std::int64_t global_batch = 0;  // of this job
  Scaling scaling = Scaling::kLinear;

  // Gradual warm-up: how many steps the rate climbs to its peak, and from where. The default start
  // is lr, or the peak if that is lower. Longer is safer for large batches.
  std::int64_t warmup_steps = 0;
  std::optional<double> start_lr = {};

  // What comes after the warm-up. It gets the peak, and counts its steps from the end of the
  // warm-up. None: the rate stays at the peak.
  std::function<Schedule(double peak)> then = {};
};

// The learning rate for a larger batch: scaled, reached by a warm-up, and followed by a schedule.
// text() says what it did: "0.1 for a batch of 256 is 0.8 for 2048 (linear); warm-up from 0.1 over
// 50 steps; then CosineAnnealingLR: …". Throws BadInput as Schedule's constructors do.
Schedule large_batch(const LargeBatchOptions& options);

struct ReduceLROnPlateauOptions {
  enum class Mode : std::uint8_t { kMin, kMax };           // smaller, or larger, is better
  enum class ThresholdMode : std::uint8_t { kRel, kAbs };  // of the best, or an amount
  Mode mode = Mode::kMin;
  double factor = 0.1;
  std::int64_t patience = 10;  // how many evaluations without progress change nothing
  double threshold = 1e-4;     // what is less than this is no progress
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  std::int64_t cooldown = 0;  // evaluations after a reduction that are not counted
  double min_lr = 0;
  double eps = 1e-8;  // a reduction by less than this is not made
};

// Lowers the learning rate when a number has stopped getting better:
//
//   optimizer.set_lr(plateau.step(job.evaluate(test, score).loss, optimizer.lr()));
//
// Every worker calls it with the same number. Job::evaluate() gives the same bits on every worker.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   the constructor throws BadInput for options out of range.
// Ownership: a value. It has a state: Job::keep() keeps it in checkpoints, or do so yourself.
class ReduceLROnPlateau {
 public:
  // The best number so far, evaluations since then, evaluations until the cooldown ends.
  using State = std::array<double, 3>;

  explicit ReduceLROnPlateau(const ReduceLROnPlateauOptions& options = {});

  // Returns the rate to go on with: lr, or lr · factor. A number that is not a number is no
  // progress.
  double step(double metric, double lr);

  std::string text() const;  // its options

  const State& state() const { return state_; }
  void load_state(const State& state) { state_ = state; }

 private:
  friend class steps::JobCore;  // keeps the state in checkpoints
  bool is_better(double metric) const;

  ReduceLROnPlateauOptions options_;
  State state_;
};

}  // namespace lockstep
