#include <fmt/format.h>
#include <lockstep/errors.h>

#include "torch/replica/tensors.h"
#include "torch/step/arithmetic.h"
#include "torch/step/shard_runner.h"

namespace lockstep::steps {
namespace {

// On a CPU. All calls run on the thread of the caller.
class HostShards : public ShardRunner, private Reports {
 public:
  explicit HostShards(ShardWork work) : work_(std::move(work)) {}

  void begin_step() override { local_ = {}; }
  void run(Turns& turns) override;
  flat::Note note() override { return {}; }
  void end_step() override {}
  const std::set<std::string>& metrics() const override { return metrics_; }
  std::optional<PhaseResult::Local> known() override { return local_; }
  PhaseResult::Local bring(Deadline) override { return local_; }
  const ShardCounts& counts() const override { return counts_; }

 private:
  void add(const std::string& name, const torch::Tensor& sum,
           const torch::Tensor& weight) override {
    add(name, sum.item<double>(), weight.item<double>());
  }
  void add(const std::string& name, double sum, double weight) override;
  torch::Tensor seeded_loss(const Turn& turn);
  void run_one(Turn& turn, Turns& turns);

  ShardWork work_;
  int shard_ = 0;  // that runs
  PhaseResult::Local local_;
  std::set<std::string> metrics_;
  ShardCounts counts_;
};

void HostShards::add(const std::string& name, double sum, double weight) {
  metrics_.insert(name);
  if (local_.reports[shard_].emplace(name, PhaseResult::Report{sum, weight}).second) return;
  throw BadInput(fmt::format("the metric {} was reported twice for shard {}", name, shard_));
}

// LibTorch's default generator belongs to the process. Workers that are threads of one process take turns, so that no
// other worker seeds or draws between a shard's seed and its loss. Backward must be outside of the lock: it meets the
// other workers, which may wait for the lock. What it needs, such as dropout's mask, was drawn in forward; a checkpoint,
// which draws again, takes a turn of its own.
torch::Tensor HostShards::seeded_loss(const Turn& turn) {
  const GeneratorTurn turn_to_draw;
  torch::manual_seed(turn.seed);
  torch::Tensor loss;
  say_where({"loss", turn.shard.step, turn.shard.index}, [&] { loss = work_.loss(turn.shard); });
  check_loss(loss, turn.shard);
  return loss;
}

void HostShards::run(Turns& turns) {
  for (int number = 0; number < turns.count(); ++number) {
    Turn turn = turns.take(number);
    if (turn.shard.batch.samples > 0)
      run_one(turn, turns);
    else
      turns.before_backward(turn);
    turns.ended();
  }
}

void HostShards::run_one(Turn& turn, Turns& turns) {
  shard_ = turn.shard.index;
  turn.shard.reports = this;
  turns.before_forward();
  const torch::Tensor loss = seeded_loss(turn);
  turns.forward_done(turn);
  turns.before_backward(turn);
  say_where({"backward pass", turn.shard.step, shard_}, [&] {
    const torch::Tensor root = backward_root(loss, turn);
    weighted_backward(work_, root, torch::full_like(root, turn.weight * turn.scale));
    local_.weighted_losses[shard_] = turn.weight * loss.item<double>();
  });
}

}  // namespace

std::unique_ptr<ShardRunner> make_host_shards(ShardWork work) {
  return std::make_unique<HostShards>(std::move(work));
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
  const bool half = loss.element_size() < sizeof(float);
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
