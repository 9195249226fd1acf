// Multiplies losses, so that small gradients do not vanish in float16, and skips the updates whose
// gradients have overflowed. The numbers are those of PyTorch's GradScaler.
#pragma once

#include <lockstep/optim.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

// All of them decide the result.
struct GradScalerOptions {
  double init_scale = 65536;  // what losses are multiplied by at first; above 0
  // After growth_interval updates without an overflow the scale is multiplied by growth_factor,
  // which is above 1. After an overflow it is multiplied by backoff_factor, which is between 0
  // and 1. With powers of two, scaling changes no bit of a gradient that neither vanishes nor
  // overflows.
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // false: nothing is scaled, and no update is skipped
};

// In the drop-in loop:
//
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);   // divides the gradients by the scale, then clips; or skips the update
//   scaler.update();          // once, after the step() of every optimizer
//
// A Step and a Trainer make these calls themselves (StepOptions::scaler, TrainerOptions::scaler),
// and keep the state in checkpoints.
//
// An update is skipped on every worker if any gradient of any worker is infinite or not a number: a
// sum over workers is then, too. A skipped update changes neither weights nor optimizer state, and
// does not count as a step of the optimizer.
//
// Threads:   one caller at a time.
// Blocking:  step() as Optimizer::step(). On a GPU, unscale() and step() wait for the gradients.
// Failure:   BadInput for options out of range, for float64, for a second unscale() or step() of an
//            optimizer before update(), for step() before any backward(), or of LibTorch's
//            optimizer without any param.grad, for update() before any step() or unscale(), and for
//            unscale() of float16 parameters. step() also throws what Optimizer::step() throws;
//            Mismatch if workers have different scales.
// Ownership: a value of its own that cannot be copied. Optimizers are borrowed for the call.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // The loss times the scale. Call backward() on it.
  torch::Tensor scale(const torch::Tensor& loss) const;

  // Divides param.grad by the scale, for a program that reads or changes gradients before step().
  // set_clip_norm() needs no such call: it limits the norm of what has been divided.
  void unscale(optim::Optimizer& optimizer);
  void unscale(torch::optim::Optimizer& optimizer);

  // The optimizer's step, unless a gradient has overflowed. Returns whether the step was made.
  bool step(optim::Optimizer& optimizer);
  bool step(torch::optim::Optimizer& optimizer);

  // Chooses the next scale: a smaller one if a step was skipped. Or sets it.
  void update();
  void update(double new_scale);

  double scale() const { return state_.scale; }  // 1 if it is not enabled
  const GradScalerOptions& options() const { return options_; }

  // What changes, for checkpoints of your own.
  struct State {
    double scale = 1;                 // a float32
    std::int64_t growth_tracker = 0;  // updates without an overflow since the scale changed
  };
  const State& state() const { return state_; }
  void load_state(const State& state);

  // For a loop that finds overflows itself: update() after what it found.
  void update_after(bool overflowed);

 private:
  struct Seen {
    bool overflowed = false;
    bool stepped = false;
  };
  void unscale(const void* optimizer, const std::vector<torch::Tensor>& parameters);
  const Seen* before_step(const void* optimizer) const;  // null: it was not unscaled
  bool end_step(const void* optimizer, bool overflowed);

  GradScalerOptions options_;
  State state_;
  std::map<const void*, Seen> seen_;  // by optimizer, since the last update()
};

// All options, as a job's properties have them: "init 65536 growth 2 backoff 0.5 interval 2000".
std::string to_string(const GradScalerOptions& options);

// For torch::save(scaler, …) and torch::load(scaler, …).
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const GradScaler& scaler);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           GradScaler& scaler);

}  // namespace lockstep
