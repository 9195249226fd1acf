#include <fmt/format.h>
#include <lockstep/errors.h>

#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"
#include "torch/step/host_runner.h"

namespace lockstep::steps {
namespace {

// All calls run on the thread of the caller.
class HostShards : public HostRunner {
 public:
  explicit HostShards(ShardWork work) : work_(std::move(work)) {}

  void run(Turns& turns) override {
    run_in_order(turns, [&](Turn& turn) { run_one(turn, turns); });
  }

 private:
  void run_one(Turn& turn, Turns& turns);

  ShardWork work_;
};

void HostShards::run_one(Turn& turn, Turns& turns) {
  Desk desk(*this, turn.shard.index);
  turn.shard.reports = &desk;
  turns.before_forward();
  const torch::Tensor loss = seeded_loss(work_, turn);
  turns.forward_done(turn);
  turns.before_backward(turn);
  say_where({"backward pass", turn.shard.step, turn.shard.index}, [&] {
    const torch::Tensor root = backward_root(loss, turn);
    weighted_backward(work_, root, torch::full_like(root, turn.weight * turn.scale));
    put_loss(turn, loss.item<double>());
  });
}

}  // namespace

std::unique_ptr<ShardRunner> make_host_shards(ShardWork work) {
  return std::make_unique<HostShards>(std::move(work));
}

void HostRunner::Desk::add(const std::string& name, double sum, double weight) {
  owner_.metrics_.insert(name);
  auto& reports = owner_.local_.reports[shard_];
  if (reports.emplace(name, PhaseResult::Report{sum, weight}).second) return;
  throw BadInput(fmt::format("the metric {} was reported twice for shard {}", name, shard_));
}

// LibTorch's default generator belongs to the process. Workers that are threads of one process take turns, so that no
// other worker seeds or draws between a shard's seed and its loss. Backward must be outside of the lock: it meets the
// other workers, which may wait for the lock. What it needs, such as dropout's mask, was drawn in forward; a checkpoint,
// which draws again, takes a turn of its own.
torch::Tensor seeded_loss(const ShardWork& work, const Turn& turn) {
  const GeneratorTurn turn_to_draw;
  torch::manual_seed(turn.seed);
  torch::Tensor loss;
  say_where({"loss", turn.shard.step, turn.shard.index}, [&] { loss = work.loss(turn.shard); });
  check_loss(loss, turn.shard);
  return loss;
}

void check_loss(const torch::Tensor& loss, const Shard& shard) {
  const auto refuse = [&](const std::string& why) {
    throw BadInput(fmt::format("the loss at step {}, shard {} {}", shard.step, shard.index, why));
  };
  if (!loss.defined()) refuse("is an undefined tensor");
  if (loss.numel() != 1)
    refuse(
        fmt::format("is {}: return one number, the mean over the batch", replica::describe(loss)));
  if (!loss.requires_grad()) {
    refuse(
        "depends on no parameter that can be trained: was it computed under NoGradGuard, or from "
        "detached tensors?");
  }
}

torch::Tensor backward_root(const torch::Tensor& loss, const Turn& turn) {
  const bool half = loss.element_size() < static_cast<std::int64_t>(sizeof(float));
  return half && turn.scale != 1 ? loss.to(torch::kFloat32) : loss;
}

void weighted_backward(const ShardWork& work, const torch::Tensor& loss,
                       const torch::Tensor& weight) {
  for (ModelStep* const model : work.models) model->await_pass(true);
  if (work.inputs.empty())
    loss.backward(weight);
  else
    loss.backward(weight, /*retain_graph=*/{}, /*create_graph=*/false, at::TensorList(work.inputs));
  for (ModelStep* const model : work.models) model->await_pass(false);
}

}  // namespace lockstep::steps
