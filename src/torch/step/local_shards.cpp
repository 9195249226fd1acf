// The shards of a job with local steps. To the Step a round is one step, whose gradient for a shard is what the shard's training
// has changed:
//
//   begin   the inner model has the weights of the last exchange, and its optimizer the shard's state
//   steps   for each step of the round: the loss of the shard's samples, backward, the inner optimizer. Nobody else takes part
//   end     the outer model's gradient is outer weights − inner weights. Backward of the outer model is this gradient, handed
//           to its accumulators; what becomes of it is what becomes of every gradient
//
// If the model is streamed, all shards hand over a fragment before they train. So it travels while they do.
//
// A worker runs the rounds of its shards one after the other, with one set of weights. So several shards on a worker cost no
// more memory than one, but for the state that is kept. On a GPU a round is queued as a whole, and the host does not wait in it.
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
#include "torch/step/round_numbers.h"

namespace lockstep::steps {
namespace {

class LocalShards : public ShardRunner {
 public:
  explicit LocalShards(ShardWork work)
      : work_(std::move(work)),
        numbers_(make_round_numbers(work_.models.front()->model().device())) {
    for (const auto& model : work_.locals) model->show();
  }

  void begin_step() override;
  void run(Turns& turns) override;
  flat::Note note() override { return {}; }
  void end_step() override;
  const std::set<std::string>& metrics() const override { return numbers_->metrics(); }
  std::optional<PhaseResult::Local> known() override { return numbers_->known(); }
  PhaseResult::Local bring(Deadline deadline) override;
  std::map<int, double> losses(Deadline deadline) override { return numbers_->losses(deadline); }
  const ShardCounts& counts() const override { return numbers_->counts(); }

 private:
  void run_one(const Turn& whole, Turns& turns);
  void hand_over_first(Turns& turns);
  void set_rates(std::int64_t step);
  void take_step(Turn& turn);

  ShardWork work_;
  std::unique_ptr<RoundNumbers> numbers_;
  std::int64_t steps_ = 0;  // of the last round
  bool running_ = false;    // a round is under way
};

void LocalShards::begin_step() {
  numbers_->begin_round();
  running_ = true;
}

void LocalShards::run(Turns& turns) {
  steps_ = turns.steps();
  set_rates(turns.first_step());  // a round that is begun again has those of its last step
  if (turns.exchanged() != LocalModel::kAll) hand_over_first(turns);
  for (int shard = turns.hosted().begin; shard < turns.hosted().end; ++shard) {
    const Turn whole = turns.whole(shard);
    for (const auto& model : work_.locals) model->begin(shard);
    run_one(whole, turns);
    for (const auto& model : work_.locals) model->end(shard, turns.exchanged());
    turns.ended();
  }
}

void LocalShards::hand_over_first(Turns& turns) {
  for (int shard = turns.hosted().begin; shard < turns.hosted().end; ++shard) {
    hand_over(work_, turns, turns.whole(shard));
  }
  turns.all_given();
}

void LocalShards::set_rates(std::int64_t step) {
  for (const auto& model : work_.locals) {
    if (work_.learning_rate) model->inner().set_lr(work_.learning_rate(step));
  }
}

// A shard without samples in the whole round keeps its state, and has no part in the exchange.
void LocalShards::run_one(const Turn& whole, Turns& turns) {
  turns.before_forward();
  for (std::int64_t step = 0; step < steps_; ++step) {
    control::say(work_.generation->world, control::Doing::kComputes);
    Turn turn = turns.take(whole.shard.index, step);
    if (step > 0) control::Faults::here().strike("forward", turn.shard.step);
    set_rates(turn.shard.step);
    if (turn.shard.batch.samples > 0) {
      take_step(turn);
    } else {
      for (const auto& model : work_.locals) model->pass();
    }
  }
  const bool has_samples = whole.shard.batch.samples > 0;
  if (has_samples) turns.forward_done(whole);
  if (turns.exchanged() == LocalModel::kAll) hand_over(work_, turns, whole);
  if (has_samples) numbers_->end_shard(whole);
}

void LocalShards::take_step(Turn& turn) {
  turn.shard.reports = numbers_.get();
  numbers_->begin_step();
  forget_cast_weights();
  const torch::Tensor loss = seeded_loss(work_, turn);
  say_where({"backward pass", turn.shard.step, turn.shard.index}, [&] { loss.backward(); });
  for (const auto& model : work_.locals) model->step();
  numbers_->add_loss(loss, static_cast<double>(turn.shard.batch.samples));
}

void LocalShards::end_step() {
  numbers_->end_round();
  for (const auto& model : work_.locals) model->commit(steps_);
  running_ = false;
}

// A norm that was not finite ends the job here. While the next round runs, asking would wait for its
// steps, so they report it.
PhaseResult::Local LocalShards::bring(Deadline deadline) {
  PhaseResult::Local local = numbers_->bring(deadline);
  for (const auto& model : work_.locals)
    if (!running_) model->inner().last_norm();
  return local;
}

LocalModel::Difference difference_of(const ShardWork& work, const Turns& turns, ModelStep& model,
                                     int shard) {
  for (const auto& local : work.locals) {
    const auto fragment = local->fragment_of(model.optimizer());
    if (!fragment) continue;
    return turns.exchanged() == LocalModel::kAll ? local->difference(*fragment)
                                                 : local->difference_before(*fragment, shard);
  }
  LOCKSTEP_CHECK(false, "an outer model is that of a local one");
}

}  // namespace

void hand_over(const ShardWork& work, Turns& turns, const Turn& whole) {
  for (const auto& local : work.locals) local->announce();
  turns.before_backward(whole);
  if (whole.shard.batch.samples == 0) return;
  for (ModelStep* const model : turns.models()) {
    LocalModel::Difference difference = difference_of(work, turns, *model, whole.shard.index);
    for (torch::Tensor& gradient : difference.gradients)
      if (whole.weight != 1) gradient.mul_(whole.weight);
    model->await_pass(true);
    torch::autograd::backward(difference.tensors, difference.gradients);
    model->await_pass(false);
  }
}

std::unique_ptr<ShardRunner> make_local_shards(ShardWork work) {
  return std::make_unique<LocalShards>(std::move(work));
}

}  // namespace lockstep::steps
