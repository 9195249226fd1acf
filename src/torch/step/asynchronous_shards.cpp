// The shards of a job with asynchronous steps. The workers of a round share its tasks: the gradient of each shard in each step.
//
//   claim    a worker takes the next task that nobody has, step by step, if the bound on staleness allows
//   take     it gets the weights as they are
//   compute  forward and backward of the task, while others change the weights
//   apply    it updates the weights, as they are then, with its gradient
//
// So a slow worker has fewer tasks, and nobody waits for it before the end of the round. There all workers have the same weights:
// what the round has changed is the gradient of every shard, as with local steps.
//
// With backups a step is synchronous: its gradients are added up, and when all are there but so many, their mean is the update.
// A gradient that comes later is dropped.
//
// The result is a function of the order (plan/order.h): which update came when, and how many were there when its task took the
// weights. A replay keeps both. There a worker may have to hold a gradient until its turn has come.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "control/doing.h"
#include "control/faults.h"
#include "plan/order.h"
#include "torch/step/arithmetic.h"
#include "torch/step/host_runner.h"
#include "torch/step/local_model.h"
#include "torch/step/order_file.h"
#include "torch/step/shared_training.h"

namespace lockstep::steps {
namespace {

class AsynchronousShards : public HostRunner {
 public:
  explicit AsynchronousShards(ShardWork work);

  void run(Turns& turns) override;
  void end_step() override;
  std::chrono::nanoseconds waited() const override { return waited_; }

 private:
  struct Task {
    std::int64_t step = 0;  // of the round, from 0 on
    int shard = 0;
  };
  struct Computed {
    Task task;
    std::int64_t seen = 0;
    Course::Loss loss = {};
    RoundReports reports = {};
    SharedTraining::Gradient gradient = {};
  };

  Course& course() const { return model_.course(); }
  Course::Counts& so_far() const { return course().counts(); }
  Course::Turn turn_when(const Course::Condition& condition);
  Course::Turn next_turn() {
    return turn_when([] { return true; });
  }

  // This worker's part of a round.
  class Round {
   public:
    Round(AsynchronousShards& its, Turns& turns);
    void run();
    void replay(const plan::RoundOrder& order);
    std::int64_t updates() const;  // of the whole round
    bool is_in_steps(const plan::RoundOrder& order) const;
    void hand_on(Reports& to) const { reports_.hand_on(to); }

   private:
    std::optional<Task> claim();
    Computed compute(const Task& task, Turn& turn, std::int64_t seen);
    std::int64_t take();
    void apply(const Computed& computed);
    void update(const Computed& computed, const Course::Done& done);
    std::int64_t needed(std::int64_t step) const;  // tasks, for the step to be done
    void skip_empty();

    struct OfStep {
      std::int64_t tasks = 0;  // with samples
      std::int64_t samples = 0;
    };
    AsynchronousShards& its_;
    Turns& turns_;
    std::vector<OfStep> of_steps_;
    RoundReports reports_;
  };

  const plan::RoundOrder* order_of(const Turns& turns, const Round& round) const;
  void end_round(Turns& turns, const Round& round);

  ShardWork work_;
  Asynchronous rule_;
  LocalModel& model_;
  SharedTraining training_;
  std::int64_t shards_;
  plan::StepRange steps_;  // of the round
  std::optional<plan::Order> replay_;
  std::optional<OrderFile> file_;       // of the leader
  std::chrono::nanoseconds waited_{0};  // in the last round
};

AsynchronousShards::AsynchronousShards(ShardWork work)
    : work_(std::move(work)),
      rule_(work_.shared->rule),
      model_(*work_.locals.front()),
      training_(model_, rule_.delay_compensation),
      shards_(work_.generation->shards) {
  model_.show();
  if (!rule_.order.empty() && work_.generation->world.leader())
    file_.emplace(rule_.order, work_.shared->job, static_cast<int>(shards_));
  if (rule_.replay.empty()) return;
  replay_ = load_order(rule_.replay);
  if (replay_->shards == shards_ && replay_->job != work_.shared->job) {
    throw BadInput(
        fmt::format("{} is the order of another job: its model, data, seed or some other option "
                    "that decides bits is not this job's",
                    rule_.replay));
  }
  if (replay_->shards != shards_) {
    throw BadInput(fmt::format("{} is the order of a job with {} shards, and this one has {}",
                               rule_.replay, replay_->shards, shards_));
  }
}

// While it says that it waits, the launcher may end a worker that others wait for.
Course::Turn AsynchronousShards::turn_when(const Course::Condition& condition) {
  const auto began = std::chrono::steady_clock::now();
  bool waits = false;
  auto turn = course().when([&] { return !so_far().broken && condition(); },
                            [&] {
                              waits = true;
                              control::say(work_.generation->world, control::Doing::kWaits);
                            });
  if (waits) control::say(work_.generation->world, control::Doing::kComputes);
  waited_ += std::chrono::steady_clock::now() - began;
  return turn;
}

void AsynchronousShards::run(Turns& turns) {
  const std::int64_t first = turns.whole(turns.hosted().begin).shard.step;
  steps_ = {first, first + turns.steps()};
  Round round(*this, turns);
  const plan::RoundOrder* const order = order_of(turns, round);
  waited_ = {};
  turns.before_forward();
  training_.open(steps_.size());
  order != nullptr ? round.replay(*order) : round.run();
  end_round(turns, round);
}

AsynchronousShards::Round::Round(AsynchronousShards& its, Turns& turns)
    : its_(its), turns_(turns), of_steps_(static_cast<std::size_t>(its.steps_.size())) {
  for (std::int64_t step = 0; step < its_.steps_.size(); ++step) {
    OfStep& all = of_steps_[static_cast<std::size_t>(step)];
    for (int shard = 0; shard < its_.shards_; ++shard) {
      const std::int64_t samples = turns_.samples(shard, step);
      all.samples += samples;
      all.tasks += samples > 0 ? 1 : 0;
    }
  }
}

std::int64_t AsynchronousShards::Round::needed(std::int64_t step) const {
  const std::int64_t tasks = of_steps_[static_cast<std::size_t>(step)].tasks;
  return std::max<std::int64_t>(tasks - its_.rule_.backups, 1);
}

std::int64_t AsynchronousShards::Round::updates() const {
  std::int64_t updates = 0;
  for (std::int64_t step = 0; step < its_.steps_.size(); ++step) updates += needed(step);
  return updates;
}

// Null: nothing is replayed.
const plan::RoundOrder* AsynchronousShards::order_of(const Turns& turns, const Round& round) const {
  if (!replay_) return nullptr;
  const plan::RoundOrder* const order = replay_->find(steps_.first);
  const auto refuse = [&](const std::string& why) {
    throw BadInput(fmt::format("{} does not fit: {}", rule_.replay, why));
  };
  const auto& rounds = replay_->rounds;
  if (order == nullptr && (rounds.empty() || rounds.back().steps.end <= steps_.first)) {
    refuse(fmt::format("it has the steps before {} only{}", steps_.first,
                       replay_->is_cut ? ", and ends in the middle of a round" : ""));
  }
  if (order == nullptr)
    refuse(fmt::format("it has no round that begins with step {}", steps_.first));
  if (order->steps != steps_) {
    refuse(fmt::format("its round from step {} on ends before step {}, and here before step {}",
                       steps_.first, order->steps.end, steps_.end));
  }
  for (const plan::OrderedUpdate& update : order->updates) {
    if (turns.samples(update.shard, update.step - steps_.first) > 0) continue;
    refuse(fmt::format("shard {} has no samples in step {}", update.shard, update.step));
  }
  if (static_cast<std::int64_t>(order->updates.size()) != round.updates() ||
      (rule_.backups > 0 && !round.is_in_steps(*order)))
    refuse(fmt::format("its round from step {} on has other shards", steps_.first));
  return order;
}

// With backups: as many updates of each step as it needs, one step after the other, all with the weights of their step.
bool AsynchronousShards::Round::is_in_steps(const plan::RoundOrder& order) const {
  std::int64_t number = 0;
  for (std::int64_t step = 0; step < its_.steps_.size(); ++step) {
    const std::int64_t first = number;
    for (; number < first + needed(step); ++number) {
      const plan::OrderedUpdate& update = order.updates[static_cast<std::size_t>(number)];
      if (update.step != its_.steps_.first + step || update.seen != first) return false;
    }
  }
  return true;
}

void AsynchronousShards::Round::run() {
  while (const auto task = claim()) {
    Turn turn = turns_.take(task->shard, task->step);
    const Computed computed = compute(*task, turn, take());
    {
      const auto now = its_.next_turn();
      apply(computed);
    }
    its_.training_.release();
  }
}

// The tasks of a step come before those of the next. Nothing: there is none left.
std::optional<AsynchronousShards::Task> AsynchronousShards::Round::claim() {
  std::optional<Task> task;
  const auto turn = its_.turn_when([&] {
    Course::Counts& counts = its_.so_far();
    skip_empty();
    if (counts.claimed == its_.course().tasks()) return true;
    const Task next{counts.claimed / its_.shards_, static_cast<int>(counts.claimed % its_.shards_)};
    const bool bounded = its_.rule_.staleness != Asynchronous::kUnbounded;
    if (bounded && next.step > counts.first_open + its_.rule_.staleness) return false;
    task = next;
    ++counts.claimed;
    return true;
  });
  return task;
}

// Skips tasks that no worker must take: those without samples, and with backups those of steps that are done.
void AsynchronousShards::Round::skip_empty() {
  Course::Counts& counts = its_.so_far();
  for (; counts.claimed < its_.course().tasks(); ++counts.claimed) {
    const std::int64_t step = counts.claimed / its_.shards_;
    if (turns_.samples(static_cast<int>(counts.claimed % its_.shards_), step) == 0) continue;
    if (step >= counts.first_open) return;
  }
}

std::int64_t AsynchronousShards::Round::take() {
  const auto now = its_.next_turn();
  its_.training_.take();
  ++its_.so_far().begun;
  return its_.so_far().in_weights;
}

AsynchronousShards::Computed AsynchronousShards::Round::compute(const Task& task, Turn& turn,
                                                                std::int64_t seen) {
  // In the first step of the round it has struck before all tasks.
  control::Faults& faults = control::Faults::here();
  if (task.step > 0) faults.strike("forward", turn.shard.step);
  Computed computed{task, seen};
  turn.shard.reports = &computed.reports;
  const torch::Tensor loss = seeded_loss(its_.work_, turn);
  say_where({"backward pass", turn.shard.step, turn.shard.index}, [&] { loss.backward(); });
  if (task.step > 0) faults.strike("backward", turn.shard.step);
  const auto samples = static_cast<double>(turn.shard.batch.samples);
  computed.loss = {loss.item<double>() * samples, samples};
  computed.gradient = its_.training_.gradient();
  return computed;
}

// With the turn.
void AsynchronousShards::Round::apply(const Computed& computed) {
  const Task& task = computed.task;
  Course& course = its_.course();
  if (task.step < course.counts().first_open) return;  // too late: it is dropped
  course.counts().broken = true;
  reports_.next_step();
  computed.reports.hand_on(reports_);
  const Course::Done done = course.note_done(task.step, task.shard, computed.loss);
  const bool last = done.tasks == needed(task.step);
  const bool adds = its_.rule_.backups > 0;
  if (adds) its_.training_.add(computed.gradient, computed.loss.samples, done.tasks == 1);
  if (!adds || last) update(computed, done);
  course.note_update({its_.steps_.first + task.step, task.shard, computed.seen});
  if (!adds || last) course.counts().in_weights = course.counts().updates;
  while (course.counts().first_open < its_.steps_.size() &&
         course.done(course.counts().first_open).tasks == needed(course.counts().first_open))
    course.end_step(course.counts().first_open);
  course.counts().broken = false;
}

void AsynchronousShards::Round::update(const Computed& computed, const Course::Done& done) {
  const Task& task = computed.task;
  const std::int64_t step = its_.steps_.first + task.step;
  LocalModel& model = its_.model_;
  if (its_.work_.learning_rate) model.inner().set_lr(its_.work_.learning_rate(step));
  if (its_.rule_.backups > 0) {
    its_.training_.apply(its_.training_.sum(computed.gradient),
                         {.number = model.steps() + task.step + 1, .divisor = done.samples});
  } else {
    const std::int64_t updates = its_.so_far().updates;
    double rate = computed.loss.samples /
                  static_cast<double>(of_steps_[static_cast<std::size_t>(task.step)].samples);
    if (its_.rule_.slows_if_stale)
      rate *= plan::rate_if_stale(updates - computed.seen, static_cast<int>(its_.shards_));
    its_.training_.apply(computed.gradient,
                         {.number = model.steps() * its_.shards_ + updates + 1, .rate = rate});
  }
  control::Faults::here().strike("update", step);
}

// Tasks are claimed by when they took weights. A worker that waits for weights applies what it holds as soon as that is next,
// because others may wait for it.
void AsynchronousShards::Round::replay(const plan::RoundOrder& order) {
  const auto pulls = order.pulls();
  const auto pulls_before = order.pulls_before();
  std::map<std::int64_t, Computed> held;  // by the numbers of their updates
  const auto may_apply = [&] {
    const Course::Counts& counts = its_.so_far();
    if (held.empty() || held.begin()->first != counts.updates) return false;
    const auto needed = pulls_before[static_cast<std::size_t>(counts.updates)];
    return counts.begun >= static_cast<std::int64_t>(needed);
  };
  const auto apply_first = [&] {
    apply(held.begin()->second);
    held.erase(held.begin());
  };
  while (true) {
    std::size_t number = 0;
    {
      const auto now = its_.next_turn();
      Course::Counts& counts = its_.so_far();
      if (counts.claimed == static_cast<std::int64_t>(pulls.size())) break;
      number = pulls[static_cast<std::size_t>(counts.claimed++)];
    }
    const plan::OrderedUpdate& update = order.updates[number];
    const Task task{update.step - its_.steps_.first, update.shard};
    Turn turn = turns_.take(task.shard, task.step);
    for (bool taken = false; !taken;) {
      const auto now =
          its_.turn_when([&] { return its_.so_far().in_weights == update.seen || may_apply(); });
      taken = its_.so_far().in_weights == update.seen;
      if (!taken) {
        apply_first();
        continue;
      }
      its_.training_.take();
      ++its_.so_far().begun;
    }
    Computed computed = compute(task, turn, update.seen);
    its_.training_.keep(computed.gradient);
    its_.training_.release();
    held.emplace(static_cast<std::int64_t>(number), std::move(computed));
    const auto now = its_.next_turn();
    while (may_apply()) apply_first();
  }
  while (!held.empty()) {
    const auto now = its_.turn_when(may_apply);
    apply_first();
  }
}

// Every worker has the same weights here, losses and buffers.
void AsynchronousShards::end_round(Turns& turns, const Round& round) {
  const std::int64_t updates = round.updates();
  plan::RoundOrder order;
  Course::Loss loss;
  {
    const auto turn = turn_when([&] { return so_far().updates == updates; });
    training_.take();
    order = {steps_, course().order()};
    loss = course().loss();
  }
  // Before the round is committed, which nobody can do without the leader: so the file has every round that counts.
  if (file_) file_->add(order);
  if (work_.learning_rate) model_.inner().set_lr(work_.learning_rate(steps_.end - 1));
  Desk desk(*this, turns.hosted().begin);
  round.hand_on(desk);
  for (int shard = turns.hosted().begin; shard < turns.hosted().end; ++shard) {
    const Turn whole = turns.whole(shard);
    if (whole.shard.batch.samples > 0) turns.forward_done(whole);
    hand_over(work_, turns, whole);
    if (whole.shard.batch.samples > 0) put_loss(whole, loss.sum / loss.samples);
    turns.ended();
  }
}

void AsynchronousShards::end_step() {
  model_.commit(steps_.size());
}

}  // namespace

std::unique_ptr<ShardRunner> make_asynchronous_shards(ShardWork work) {
  return std::make_unique<AsynchronousShards>(std::move(work));
}

}  // namespace lockstep::steps
