// The shards of a job with asynchronous steps. The workers of a round share its tasks, so a slow worker has fewer of them, and nobody
// waits for it before the end of the round (asynchronous_round.h). There all workers have the same weights: what the round has
// changed is the gradient of every shard, as with local steps.
//
// The result is a function of the order (plan/order.h): which update came when, and how many were there when its task took the
// weights. A replay keeps both. There a worker may have to hold a gradient until its turn has come.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <torch/torch.h>

#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "control/doing.h"
#include "control/faults.h"
#include "plan/order.h"
#include "plan/tasks.h"
#include "torch/step/arithmetic.h"
#include "torch/step/asynchronous_round.h"
#include "torch/step/host_runner.h"
#include "torch/step/local_model.h"
#include "torch/step/order_file.h"

namespace lockstep::steps {
namespace {

class AsynchronousShards : public HostRunner {
 public:
  explicit AsynchronousShards(ShardWork work);

  void run(Turns& turns) override;
  void end_step() override;
  // These wait for a GPU. The next round uses the same memory of the host, so the reduction of this one, in which workers meet, must
  // have ended.
  std::optional<PhaseResult::Local> known() override;
  std::map<int, double> losses(Deadline deadline) override;
  const ShardCounts& counts() const override { return training_.counts(); }
  std::chrono::nanoseconds waited() const override { return waited_; }

 private:
  using Round = AsynchronousRound;
  plan::RoundTasks tasks_of(const Turns& turns) const;
  const plan::RoundOrder* order_for(const plan::RoundTasks& tasks) const;
  Round::Setting setting_for(const plan::RoundTasks& tasks);
  Round::Computed compute(const plan::Task& task, Turn& turn);
  void hand_on(Turns& turns, const Round::Ended& ended);
  void set_rate(std::int64_t step);
  void note_wait(bool begins);

  ShardWork work_;
  Asynchronous rule_;
  LocalModel& model_;
  RoundTraining training_;
  std::int64_t steps_ = 0;  // of the last round
  std::optional<plan::Order> replay_;
  std::optional<OrderFile> file_;       // of the leader
  std::chrono::nanoseconds waited_{0};  // in the last round
  std::chrono::steady_clock::time_point began_waiting_;
};

AsynchronousShards::AsynchronousShards(ShardWork work)
    : work_(std::move(work)),
      rule_(work_.shared->rule),
      model_(*work_.locals.front()),
      training_(model_, rule_.delay_compensation, work_.generation->control.timeout()) {
  const int shards = work_.generation->shards;
  model_.show();
  if (!rule_.order.empty() && work_.generation->world.leader())
    file_.emplace(rule_.order, work_.shared->job, shards);
  if (rule_.replay.empty()) return;
  replay_ = load_order(rule_.replay);
  if (replay_->shards == shards && replay_->job != work_.shared->job) {
    throw BadInput(
        fmt::format("{} is the order of another job: its model, data, seed or some other option "
                    "that decides bits is not this job's",
                    rule_.replay));
  }
  if (replay_->shards != shards) {
    throw BadInput(fmt::format("{} is the order of a job with {} shards, and this one has {}",
                               rule_.replay, replay_->shards, shards));
  }
}

// While it says that it waits, the launcher may end a worker that others wait for.
void AsynchronousShards::note_wait(bool begins) {
  const auto now = std::chrono::steady_clock::now();
  if (begins)
    began_waiting_ = now;
  else
    waited_ += now - began_waiting_;
  control::say(work_.generation->world,
               begins ? control::Doing::kWaits : control::Doing::kComputes);
}

void AsynchronousShards::set_rate(std::int64_t step) {
  if (work_.learning_rate) model_.inner().set_lr(work_.learning_rate(step));
}

plan::RoundTasks AsynchronousShards::tasks_of(const Turns& turns) const {
  const int shards = work_.generation->shards;
  std::vector<std::int64_t> samples;
  for (std::int64_t step = 0; step < turns.steps(); ++step)
    for (int shard = 0; shard < shards; ++shard) samples.push_back(turns.samples(shard, step));
  const std::int64_t first = turns.first_step();
  return {{first, first + turns.steps()}, shards, rule_, std::move(samples)};
}

// Null: nothing is replayed.
const plan::RoundOrder* AsynchronousShards::order_for(const plan::RoundTasks& tasks) const {
  if (!replay_) return nullptr;
  const std::int64_t first = tasks.steps().first;
  const plan::RoundOrder* const order = replay_->find(first);
  const auto refuse = [&](const std::string& why) {
    throw BadInput(fmt::format("{} does not fit: {}", rule_.replay, why));
  };
  const auto& rounds = replay_->rounds;
  if (order == nullptr && (rounds.empty() || rounds.back().steps.end <= first)) {
    refuse(fmt::format("it has the steps before {} only{}", first,
                       replay_->is_cut ? ", and ends in the middle of a round" : ""));
  }
  if (order == nullptr) refuse(fmt::format("it has no round that begins with step {}", first));
  const std::string misfit = tasks.misfit(*order);
  if (!misfit.empty()) refuse(misfit);
  return order;
}

AsynchronousRound::Setting AsynchronousShards::setting_for(const plan::RoundTasks& tasks) {
  return {.model = model_,
          .training = training_,
          .tasks = tasks,
          .replayed = order_for(tasks),
          .first_update = model_.steps() * (rule_.backups > 0 ? 1 : tasks.shards()),
          .waits = [this](bool begins) { note_wait(begins); }};
}

void AsynchronousShards::run(Turns& turns) {
  steps_ = turns.steps();
  waited_ = {};
  const plan::RoundTasks tasks = tasks_of(turns);
  training_.set_rates(tasks.steps(), work_.learning_rate);
  const Round::Setting setting = setting_for(tasks);
  turns.before_forward();
  const auto round = model_.has_course() ? make_shared_round(setting) : make_sent_round(setting);
  while (const auto task = round->claim()) {
    Turn turn = turns.take(task->shard, task->step);
    round->take(*task);
    round->give(compute(*task, turn));
  }
  const Round::Ended ended = round->end();
  // Before the round is committed, which nobody can do without the leader: so the file has every round that counts.
  if (file_) file_->add(ended.order);
  set_rate(tasks.steps().end - 1);
  hand_on(turns, ended);
}

AsynchronousRound::Computed AsynchronousShards::compute(const plan::Task& task, Turn& turn) {
  // In the first step of the round it has struck before all tasks.
  control::Faults& faults = control::Faults::here();
  if (task.step > 0) faults.strike("forward", turn.shard.step);
  set_rate(turn.shard.step);  // for a loss that looks
  Round::Computed computed{task};
  turn.shard.reports = &computed.reports;
  forget_cast_weights();
  const torch::Tensor loss = seeded_loss(work_, turn);
  say_where({"backward pass", turn.shard.step, turn.shard.index}, [&] { loss.backward(); });
  if (task.step > 0) faults.strike("backward", turn.shard.step);
  computed.gradient = training_.gradient();
  // Afterwards, because a GPU has the loss then: gradient() waits with a deadline.
  const auto samples = static_cast<double>(turn.shard.batch.samples);
  computed.loss = {loss.item<double>() * samples, samples};
  return computed;
}

void AsynchronousShards::hand_on(Turns& turns, const Round::Ended& ended) {
  Desk desk(*this, turns.hosted().begin);
  ended.reports.hand_on(desk);
  for (int shard = turns.hosted().begin; shard < turns.hosted().end; ++shard) {
    const Turn whole = turns.whole(shard);
    if (whole.shard.batch.samples > 0) turns.forward_done(whole);
    hand_over(work_, turns, whole);
    if (whole.shard.batch.samples > 0) put_loss(whole, ended.loss.sum / ended.loss.samples);
    turns.ended();
  }
}

void AsynchronousShards::end_step() {
  model_.commit(steps_);
}

std::optional<PhaseResult::Local> AsynchronousShards::known() {
  training_.wait();
  for (ModelStep* const model : work_.models) model->collect_with_parity();
  return HostRunner::known();
}

std::map<int, double> AsynchronousShards::losses(Deadline deadline) {
  training_.wait();
  return HostRunner::losses(deadline);
}

}  // namespace

void give_up_round(Comm& comm, const std::string& what) {
  const Timeout error(
      fmt::format("rank {} has waited {:.1f} s for {} in an asynchronous round: another worker is "
                  "slow, or stopped; give more --timeout",
                  comm.rank(), std::chrono::duration<double>(comm.timeout()).count(), what),
      {comm.rank()});
  comm::Inside::fail(comm, error);
  throw error;
}

std::unique_ptr<ShardRunner> make_asynchronous_shards(ShardWork work) {
  return std::make_unique<AsynchronousShards>(std::move(work));
}

}  // namespace lockstep::steps
