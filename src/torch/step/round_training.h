// What training in an asynchronous round computes: the gradient of a task, and updates of weights, wherever these are.
#pragma once

#include <lockstep/local_steps.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "plan/rounds.h"
#include "torch/divergence/watch.h"
#include "torch/optim/update.h"
#include "torch/replica/gradient_source.h"
#include "torch/step/local_model.h"
#include "torch/step/round_model.h"

namespace lockstep::steps {

// Memories of the host with the layout of the model, or the part of them that an update touches.
struct RoundMemory {
  std::byte* weights = nullptr;
  std::byte* sum = nullptr;  // with backups: of the gradients of a step
  std::vector<std::byte*>
      states;  // of the optimizer: by memory, then by entry, where the entry begins
};

// Trains one model. Its passes run where the model is; updates are computed on the host.
//
// Threads:   add() and apply() may be called by another thread than the rest, one caller at a time each. A program's loss may look
//            at its optimizer meanwhile.
// Blocking:  wait(), begin(), show() and gradient() on a GPU, as RoundModel.
// Failure:   factor_of(): BadInput for a gradient that is not finite and is to be clipped. As RoundModel.
// Ownership: borrows the model, which outlives it.
class RoundTraining {
 public:
  RoundTraining(LocalModel& model, double delay_compensation, std::chrono::milliseconds timeout);

  // Before a round: the learning rates of its steps. Without a schedule they are those that the optimizer has.
  using Schedule = std::function<double(std::int64_t step)>;
  void set_rates(const plan::StepRange& steps, const Schedule& schedule);

  // Until a GPU has done what was queued. Then the host may read the model's weights and buffers.
  void wait() { round_model_->wait(); }
  // A round begins: gradients of one that was broken off go. Waits, too.
  void begin();

  // The model gets these weights and buffers.
  void show(const std::byte* weights, const std::vector<std::byte>& buffers) {
    round_model_->show(weights, buffers);
  }

  // What backward has left, and the weights that it began with if delays are compensated: until release() or show(). keep()
  // copies it.
  struct Gradient : RoundGradient {
    std::vector<std::byte> kept_values = {}, kept_weights = {};
  };
  Gradient gradient();
  void keep(Gradient& gradient) const;
  void release();
  const ShardCounts& counts() const { return round_model_->counts(); }

  // What an update multiplies these gradients by: 1 / `divisor`, and less if they are clipped.
  double factor_of(const std::byte* values, double divisor) const;

  using Pieces = divergence::PieceRange;
  Pieces all_pieces() const;
  // Adds gradients, times a weight, to the sum; the first are written there.
  void add(const RoundMemory& memory, Pieces pieces, const std::byte* values, double weight,
           bool first) const;
  struct Update {
    const std::byte* gradient = nullptr;
    const std::byte* seen =
        nullptr;        // the weights that it was computed from; null: delays are not compensated
    double factor = 1;  // factor_of()
    std::int64_t number = 0;  // of the optimizer's steps since the job began, from 1
    std::int64_t step = 0;    // of the job, whose learning rate it has
    double rate = 1;          // this part of it
  };
  void apply(const RoundMemory& memory, Pieces pieces, const Update& update);

 private:
  replica::GradientSource source_of(const std::byte* values, double factor) const;
  double norm_of(const replica::GradientSource& source, optim::Norm norm) const;

  LocalModel& model_;
  optim::Trained& trained_;  // of its inner optimizer
  std::unique_ptr<RoundModel> round_model_;
  double delay_compensation_;    // Asynchronous
  std::int64_t first_step_ = 0;  // of the round
  std::vector<std::vector<double>>
      rates_;  // by step of the round, by rule of the optimizer; without a schedule one for all
};

}  // namespace lockstep::steps
