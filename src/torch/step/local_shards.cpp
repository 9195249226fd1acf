// The shards of a job with local steps. To the Step a round is one step, whose gradient for a shard is what the shard's training
// has changed:
//
//   begin   the inner model has the weights of the last exchange, and its optimizer the shard's state
//   steps   for each step of the round: the loss of the shard's samples, backward, the inner optimizer. Nobody else takes part
//   end     the outer model's gradient is outer weights − inner weights. Backward of the outer model is this gradient, handed
//           to its accumulators; what becomes of it is what becomes of every gradient
//
// A worker runs the rounds of its shards one after the other, with one set of weights. So several shards on a worker cost no
// more memory than one, but for the state that is kept.
#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "control/doing.h"
#include "control/faults.h"
#include "torch/step/arithmetic.h"
#include "torch/step/host_runner.h"
#include "torch/step/local_model.h"

namespace lockstep::steps {
namespace {

class LocalShards : public HostRunner {
 public:
  explicit LocalShards(ShardWork work) : work_(std::move(work)) {
    for (const auto& model : work_.locals) model->show();
  }

  void run(Turns& turns) override;
  void end_step() override;

 private:
  // What a shard has reported in the steps of its round, added up.
  class Sums : public Reports {
   public:
    void add(const std::string& name, const torch::Tensor& sum,
             const torch::Tensor& weight) override {
      add(name, sum.item<double>(), weight.item<double>());
    }
    void add(const std::string& name, double sum, double weight) override;
    void next_step() { reported_.clear(); }
    void hand_on(Reports& to) const;

   private:
    std::map<std::string, PhaseResult::Report> sums_;
    std::set<std::string> reported_;  // in this step
  };

  void run_one(const Turn& whole, int number, Turns& turns);
  double take_step(Turn& turn);
  void hand_over(const Turn& whole);

  ShardWork work_;
  std::int64_t steps_ = 0;  // of the last round
};

void LocalShards::run(Turns& turns) {
  steps_ = turns.steps();
  for (int number = 0; number < turns.count(); ++number) {
    const Turn whole = turns.whole(number);
    for (const auto& model : work_.locals) model->begin(whole.shard.index);
    run_one(whole, number, turns);
    for (const auto& model : work_.locals) model->end(whole.shard.index);
    turns.ended();
  }
}

// A shard without samples in the whole round keeps its state, and has no part in the exchange.
void LocalShards::run_one(const Turn& whole, int number, Turns& turns) {
  Sums sums;
  double losses = 0;
  turns.before_forward();
  for (std::int64_t step = 0; step < steps_; ++step) {
    control::say(work_.generation->world, control::Doing::kComputes);
    Turn turn = turns.take(number, step);
    if (step > 0) control::Faults::here().strike("forward", turn.shard.step);
    turn.shard.reports = &sums;
    sums.next_step();
    const auto samples = static_cast<double>(turn.shard.batch.samples);
    if (samples > 0) {
      losses += samples * take_step(turn);
    } else {
      for (const auto& model : work_.locals) model->pass();
    }
  }
  if (whole.shard.batch.samples > 0) turns.forward_done(whole);
  turns.before_backward(whole);
  if (whole.shard.batch.samples == 0) return;
  hand_over(whole);
  put_loss(whole, losses / static_cast<double>(whole.shard.batch.samples));
  Desk desk(*this, whole.shard.index);
  sums.hand_on(desk);
}

double LocalShards::take_step(Turn& turn) {
  for (const auto& model : work_.locals) {
    if (work_.learning_rate) model->inner().set_lr(work_.learning_rate(turn.shard.step));
  }
  const torch::Tensor loss = seeded_loss(work_, turn);
  say_where({"backward pass", turn.shard.step, turn.shard.index}, [&] { loss.backward(); });
  for (const auto& model : work_.locals) model->step();
  return loss.item<double>();
}

// A gradient that a shard seeds with its weight, as other shards do.
void LocalShards::hand_over(const Turn& whole) {
  for (std::size_t i = 0; i < work_.locals.size(); ++i) {
    LocalModel::Difference difference = work_.locals[i]->difference();
    for (torch::Tensor& gradient : difference.gradients)
      if (whole.weight != 1) gradient.mul_(whole.weight);
    work_.models[i]->await_pass(true);
    torch::autograd::backward(difference.tensors, difference.gradients);
    work_.models[i]->await_pass(false);
  }
}

void LocalShards::end_step() {
  for (const auto& model : work_.locals) model->commit(steps_);
}

void LocalShards::Sums::add(const std::string& name, double sum, double weight) {
  if (!reported_.insert(name).second)
    throw BadInput("the metric " + name + " was reported twice in one step");
  sums_[name].sum += sum;
  sums_[name].weight += weight;
}

void LocalShards::Sums::hand_on(Reports& to) const {
  for (const auto& [name, report] : sums_) to.add(name, report.sum, report.weight);
}

}  // namespace

std::unique_ptr<ShardRunner> make_local_shards(ShardWork work) {
  return std::make_unique<LocalShards>(std::move(work));
}

}  // namespace lockstep::steps
