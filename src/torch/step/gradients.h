// How the gradients of a step's shards reach the update: a strategy for each way.
//
//   fused     every worker can read all gradients. The update adds them up itself: reduction and update are one pass, and
//             averages are never written
//   reduced   the last backward of a step reduces, and leaves the averages in param.grad
//   encoded   the same with a codec, which encodes each shard by itself: each has a bank of its own
//
#pragma once

#include <chrono>
#include <memory>

#include "torch/optim/update.h"
#include "torch/step/generation.h"

namespace lockstep::steps {

// The gradients of one model, from shard to update. As long as it lives, backward passes are those of shards.
//
// Threads:   as the replica.
// Blocking:  reduce(), unless finish() waits; finish() if it does, or if gradients may be absent. They are collective; at most
//            the Comm's timeout.
// Failure:   as Replica.
// Ownership: the ModelStep owns it; it borrows the model and the generation.
class StepGradients {
 public:
  virtual ~StepGradients() = default;

  // Before a shard's turn: its gradients go to the bank that plan/ names. `planned` is of the generation's plan.
  virtual void begin_shard(const plan::Accumulation::Step& planned);

  // Whether the last backward of a step meets the other workers. Only then is before_last() or reduce() called: with the
  // weight of all shards, which the reduction divides by.
  virtual bool meets() const = 0;
  using Waits = replica::ShardPass::Waits;
  virtual void before_last(double total, Waits waits) = 0;
  // In place of the last backward, if the last shard has no samples.
  virtual void reduce(double total, Waits waits) = 0;

  // After the last shard: where the update reads the gradients.
  virtual optim::GradientSource finish(double total) = 0;
  // The same without a shard before, of gradients that are there.
  virtual optim::GradientSource source(double total) const = 0;
  // How long the last backward waited for the reduction.
  virtual std::chrono::nanoseconds exposed() const = 0;

 protected:
  explicit StepGradients(replica::Replicated& model) : model_(model) {}
  replica::Replicated& model_;
};

enum class Averages : bool {
  kAnywhere,  // where it is fastest, or nowhere
  kInGrad,    // param.grad has them before an update
};
// `with_parity`: the fused one looks for gradients that changed though nobody wrote. Collective.
std::unique_ptr<StepGradients> make_gradients(replica::Replicated& model,
                                              const Generation& generation, Averages averages,
                                              bool with_parity);

}  // namespace lockstep::steps
