#include "bench/step/clocks.h"

#include <algorithm>
#include <chrono>

#include "bench/step/device.h"
#include "bench/turns.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 6;         // the second half of it is timed, for the number of steps
constexpr int kWarmUpOnCuda = 20;  // the same; kernels are searched for, and graphs captured
constexpr int kHalfWarmUp = kWarmUp / 2;
constexpr int kHalfWarmUpOnCuda = kWarmUpOnCuda / 2;
constexpr int kWarmUpOfTurn = 3;
constexpr std::int64_t kLeastSteps = 5;
constexpr std::int64_t kMostSteps = 20'000;
constexpr std::int64_t kNoEnd = 1 << 24;

double ms_since(Clock::time_point begun) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
}

std::int64_t fitting_steps(const StepJob& job, double step_ms) {
  const auto fitting = static_cast<std::int64_t>(std::min(job.seconds * 1000 / step_ms, 1e6));
  return std::clamp(fitting, kLeastSteps, kMostSteps);
}

// All workers get the same number.
std::int64_t agreed_steps(const StepJob& job, World& world, double step_ms) {
  if (job.steps > 0) return job.steps;
  world.comm().all_reduce({&step_ms, 1, DType::kFloat64}, {ReduceOp::kMax}).wait();
  return fitting_steps(job, step_ms);
}

// The device's time from the end of each step to the end of the next. The host does not wait
// meanwhile.
std::vector<double> timed_on_cuda(const StepJob& job, World& world,
                                  const std::function<void()>& step) {
  DeviceMarks warm_up(world.device());
  for (int i = 0; i < kHalfWarmUpOnCuda; ++i) step();
  warm_up.mark();
  for (int i = 0; i < kHalfWarmUpOnCuda; ++i) step();
  warm_up.mark();
  const std::int64_t steps =
      agreed_steps(job, world, warm_up.milliseconds().front() / kHalfWarmUpOnCuda);
  DeviceMarks marks(world.device());
  world.comm().barrier().wait();
  marks.mark();
  for (std::int64_t i = 0; i < steps; ++i) {
    step();
    marks.mark();
  }
  return marks.milliseconds();
}

// Of each turn, if there are several. Before it, other systems have used the caches.
std::int64_t steps_of_turn(std::int64_t steps, const TurnTaker& turns) {
  if (turns.turns() == 1) return steps;
  return std::max((steps + turns.turns() - 1) / turns.turns(), kLeastSteps);
}
int unmeasured_steps(const TurnTaker& turns) {
  return turns.turns() > 1 ? kWarmUpOfTurn : 0;
}

// The times of the Trainer itself. A turn ends inside of the hook, where the Trainer waits for the
// next one.
class HostClock : public TrainerClock {
 public:
  HostClock(const StepJob& job, World& world) : job_(job), world_(world) {}
  bool enough_after(const StepRecord& record) override {
    const std::int64_t done = record.step + 1;
    if (done <= kHalfWarmUp) return false;
    if (done <= kWarmUp) {
      warm_up_ms_ += record.step_ms;
      if (done < kWarmUp) return false;
      steps_ = steps_of_turn(agreed_steps(job_, world_, warm_up_ms_ / kHalfWarmUp), turns_);
      return !next_turn();
    }
    if (over_ || ++of_turn_ <= unmeasured_steps(turns_)) return false;
    times_.push_back(record.step_ms);
    return of_turn_ == unmeasured_steps(turns_) + steps_ && !next_turn();
  }
  std::vector<double> milliseconds() override { return times_; }

 private:
  bool next_turn() {
    of_turn_ = 0;
    over_ = !turns_.wait();
    return !over_;
  }

  const StepJob& job_;
  World& world_;
  TurnTaker turns_;
  std::int64_t steps_ = 0;    // measured in a turn
  std::int64_t of_turn_ = 0;  // that have ended
  bool over_ = false;         // the Trainer runs a few steps more, until all workers have heard it
  double warm_up_ms_ = 0;
  std::vector<double> times_;
};

// Marks in the device's work. The hook may be called when backward of the next step is queued
// already. But it is called once per step, so the time between two marks is still that of one step.
class CudaClock : public TrainerClock {
 public:
  CudaClock(const StepJob& job, torch::Device device)
      : job_(job), warm_up_(device), marks_(device) {}
  bool enough_after(const StepRecord& record) override {
    const std::int64_t done = record.step + 1;
    if (done == kWarmUpOnCuda / 2 || done == kWarmUpOnCuda) warm_up_.mark();
    if (done == kWarmUpOnCuda)
      steps_ = fitting_steps(job_, warm_up_.milliseconds().front() / kHalfWarmUpOnCuda);
    if (done >= kWarmUpOnCuda) marks_.mark();
    return job_.steps == 0 && done >= kWarmUpOnCuda + steps_;
  }
  std::vector<double> milliseconds() override { return marks_.milliseconds(); }

 private:
  const StepJob& job_;
  DeviceMarks warm_up_;
  DeviceMarks marks_;
  std::int64_t steps_ = kMostSteps;
};

}  // namespace

std::int64_t most_steps(const StepJob& job) {
  if (!job.on_cuda()) return kNoEnd;
  return (job.steps > 0 ? job.steps : kMostSteps) + kWarmUpOnCuda;
}

std::vector<double> timed(const StepJob& job, World& world, const std::function<void()>& step) {
  if (job.on_cuda()) return timed_on_cuda(job, world, step);
  TurnTaker turns;
  for (int i = 0; i < kHalfWarmUp; ++i) step();
  auto begun = Clock::now();
  for (int i = 0; i < kHalfWarmUp; ++i) step();
  const std::int64_t steps =
      steps_of_turn(agreed_steps(job, world, ms_since(begun) / kHalfWarmUp), turns);
  std::vector<double> times;
  while (turns.wait()) {
    for (int i = 0; i < unmeasured_steps(turns); ++i) step();
    world.comm().barrier().wait();
    for (std::int64_t i = 0; i < steps; ++i) {
      begun = Clock::now();
      step();
      times.push_back(ms_since(begun));
    }
  }
  return times;
}

std::unique_ptr<TrainerClock> make_clock(const StepJob& job, World& world) {
  if (job.on_cuda()) return std::make_unique<CudaClock>(job, world.device());
  return std::make_unique<HostClock>(job, world);
}

}  // namespace lockstep::bench
