// How the gradients of a step's shards reach the update: a strategy for each way.
//
//   fused     where every worker reads all gradients, nothing is reduced before the update, which does it on the way
//   reduced   the last backward of a step reduces, and leaves the averages in param.grad
//
// A class for each, since the fused one writes no averages at all: there is nothing in param.grad to look at. A codec, a
// second level or a partition is another class here.
#pragma once

#include <chrono>
#include <memory>

#include "torch/optim/gradient_source.h"
#include "torch/replica/replicated.h"
#include "torch/step/generation.h"

namespace lockstep::steps {

// Threads:   that of the replica.
// Blocking:  reduce(), and finish() where gradients may be absent, which are collective; at most the Comm's timeout.
// Failure:   as Replica.
// Ownership: borrows the model and the generation. As long as it lives backward passes are those of shards.
class StepGradients {
 public:
  virtual ~StepGradients() = default;

  // Before a shard's turn: its gradients go to the bank that plan/ names.
  void begin_shard(const plan::Accumulation::Step& planned);

  // Whether the last backward of a step meets the other workers, and must know what all shards weigh.
  virtual bool meets() const = 0;
  virtual void before_last(double total) = 0;
  // In place of the last backward, for a shard without samples.
  virtual void reduce(double total) = 0;

  // After the last shard.
  virtual optim::GradientSource finish(double total) = 0;
  // What the reduction has added to the last backward.
  virtual std::chrono::nanoseconds exposed() const = 0;

 protected:
  explicit StepGradients(replica::Replicated& model) : model_(model) {}
  replica::Replicated& model_;
};

enum class Averages : bool {
  kAnywhere,
  kInGrad,  // param.grad has them before an update
};
// `watches`: for bits that change on their own. Collective.
std::unique_ptr<StepGradients> make_gradients(replica::Replicated& model,
                                              const Generation& generation, Averages averages,
                                              bool watches);

}  // namespace lockstep::steps
