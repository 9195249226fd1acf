// How a worker trains in an asynchronous round: it takes the weights that all share, computes a gradient with them, and applies
// it to the weights as they are then.
#pragma once

#include <lockstep/local_steps.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "torch/optim/update.h"
#include "torch/replica/gradient_source.h"
#include "torch/step/local_model.h"

namespace lockstep::steps {

// Of one model.
//
// Threads:   one caller at a time; take(), add(), sum() and apply() with the Course's turn.
// Blocking:  open() waits for the turn.
// Failure:   open() as LocalModel::open_round(); apply() BadInput for a gradient that is not finite and is to be clipped.
// Ownership: borrows the model, which outlives it.
class SharedTraining {
 public:
  SharedTraining(LocalModel& model, double delay_compensation);

  // A round of so many steps: all share the weights, the state and the buffers that the job has.
  void open(std::int64_t steps);
  // The program's model gets weights and buffers as they are.
  void take();

  // What backward has left, and the weights that it began with if delays are compensated: memory of the model, until
  // release() or the next take(). keep() copies it.
  struct Gradient {
    const std::byte* values = nullptr;
    const std::byte* weights = nullptr;
    std::vector<std::byte> buffers;
    std::vector<std::byte> kept_values, kept_weights;
  };
  Gradient gradient();
  void keep(Gradient& gradient) const;
  void release();

  // With backups: adds a gradient, times a weight, to the sum of the step. Then apply() it, divided by the sum of the weights.
  void add(const Gradient& gradient, double weight, bool first);
  Gradient sum(const Gradient& last) const;

  struct Update {
    std::int64_t number = 0;  // since the job began, from 1
    double rate = 1;          // of the learning rate
    double divisor = 1;       // of the gradient
  };
  void apply(const Gradient& gradient, const Update& update);

 private:
  void give_buffers(const std::vector<std::byte>& buffers);
  replica::GradientSource source_of(const Gradient& gradient, double divisor) const;
  double norm_of(const replica::GradientSource& source, optim::Norm norm) const;

  LocalModel& model_;
  optim::Trained& trained_;             // of its inner optimizer
  double delay_compensation_;           // Asynchronous
  std::vector<torch::Tensor> weights_;  // the shared ones, by entry
};

}  // namespace lockstep::steps
