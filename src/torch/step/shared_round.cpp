// An asynchronous round of workers that share memory (course.h). A worker that reads or writes the weights holds the turn.
#include <algorithm>
#include <map>
#include <utility>

#include "control/faults.h"
#include "torch/optim/impl.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"
#include "torch/step/asynchronous_round.h"

namespace lockstep::steps {
namespace {

class SharedRound : public AsynchronousRound {
 public:
  explicit SharedRound(Setting setting);

  std::optional<plan::Task> claim() override;
  void take(const plan::Task& task) override;
  void give(Computed computed) override;
  Ended end() override;

 private:
  struct Held {
    Computed computed;
    std::int64_t seen = 0;
  };
  // What a replay keeps.
  struct Replay {
    std::vector<std::size_t> pulls, pulls_before;
    std::map<std::int64_t, Held>
        held;                 // gradients whose turn has not come, by the numbers of their updates
    std::int64_t number = 0;  // of the update whose task is under way
  };

  const plan::TaskBook::Counts& so_far() const { return book_.counts(); }
  Course::Turn turn_when(const Course::Condition& condition);
  Course::Turn next_turn() {
    return turn_when([] { return true; });
  }
  void open();
  void take_all();
  void give_buffers(const std::vector<std::byte>& buffers);
  void apply(const Held& held);
  void update(const Computed& computed, const plan::TaskBook::Effect& effect);
  bool may_apply_held();
  void apply_held();

  Setting its_;
  Course& course_;
  plan::TaskBook book_;
  optim::Trained& trained_;             // of the inner optimizer
  std::vector<torch::Tensor> weights_;  // the shared ones, by entry
  RoundMemory memory_;
  std::int64_t seen_ = 0;  // updates, by the task under way
  std::optional<Replay> replay_;
  bool goes_on_ = false;  // workers of the generation before have begun this round
};

SharedRound::SharedRound(Setting setting)
    : its_(std::move(setting)),
      course_(its_.model.course()),
      book_(its_.tasks, course_.book()),
      trained_(optim::inside(its_.model.inner()).trained),
      memory_{course_.weights(), course_.sum(), {}} {
  if (its_.replayed != nullptr)
    replay_ = Replay{its_.replayed->pulls(), its_.replayed->pulls_before(), {}, 0};
  const auto& entries = trained_.model->layout().entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    weights_.push_back(
        tensor_at(course_.weights() + entries[entry].offset, trained_.parameter(entry).detach()));
  }
  open();
}

// All share the weights, the state and the buffers that the job has, or those of a round that goes on.
void SharedRound::open() {
  const torch::NoGradGuard no_grad;
  its_.model.open_round();
  its_.training.begin();
  const auto turn = course_.now();
  for (const torch::Tensor& state : its_.model.state_after())
    memory_.states.push_back(static_cast<std::byte*>(state.data_ptr()));
  const Course::Opened opened = course_.open(its_.model.steps());
  goes_on_ = opened == Course::Opened::kGoesOn;
  if (opened != Course::Opened::kNew) return;
  book_.clear();
  for (std::size_t entry = 0; entry < weights_.size(); ++entry)
    weights_[entry].copy_(trained_.parameter(entry));
  const auto before = its_.model.state_before();
  const auto state = its_.model.state_after();
  for (std::size_t i = 0; i < state.size(); ++i) state[i].copy_(before[i]);
  give_buffers(replica::pack(trained_.model->model().buffers));
  course_.wrote();
}

void SharedRound::take_all() {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : trained_.model->model().buffers) bytes += tensor.nbytes();
  its_.training.show(course_.weights(), {course_.buffers(), course_.buffers() + bytes});
}

void SharedRound::give_buffers(const std::vector<std::byte>& buffers) {
  std::copy(buffers.begin(), buffers.end(), course_.buffers());
}

Course::Turn SharedRound::turn_when(const Course::Condition& condition) {
  bool waited = false;
  auto turn = course_.when([&] { return !course_.is_half_written() && condition(); },
                           [&] {
                             waited = true;
                             its_.waits(true);
                           });
  if (waited) its_.waits(false);
  return turn;
}

// In a replay in the order in which tasks took weights, else in that of steps.
std::optional<plan::Task> SharedRound::claim() {
  std::optional<plan::Task> task;
  if (replay_) {
    const auto turn = next_turn();
    if (so_far().claimed == static_cast<std::int64_t>(replay_->pulls.size())) return std::nullopt;
    const std::size_t number = replay_->pulls[static_cast<std::size_t>(book_.claim_next())];
    replay_->number = static_cast<std::int64_t>(number);
    return its_.tasks.task(its_.tasks.number(its_.replayed->updates[number]));
  }
  const auto turn = turn_when([&] {
    task = book_.claim();
    return task || book_.all_claimed();
  });
  return task;
}

// A worker that waits for weights in a replay applies what it holds as soon as that is next, because others may wait for it.
void SharedRound::take(const plan::Task&) {
  const auto is_next = [&] {
    return !replay_ || so_far().in_weights ==
                           its_.replayed->updates[static_cast<std::size_t>(replay_->number)].seen;
  };
  while (true) {
    const auto turn = turn_when([&] { return is_next() || may_apply_held(); });
    if (!is_next()) {
      apply_held();
      continue;
    }
    take_all();
    seen_ = book_.begin();
    return;
  }
}

void SharedRound::give(Computed computed) {
  if (!replay_) {
    {
      const auto turn = next_turn();
      apply({std::move(computed), seen_});
    }
    its_.training.release();
    return;
  }
  its_.training.keep(computed.gradient);
  its_.training.release();
  replay_->held.emplace(replay_->number, Held{std::move(computed), seen_});
  const auto turn = next_turn();
  while (may_apply_held()) apply_held();
}

bool SharedRound::may_apply_held() {
  if (!replay_ || replay_->held.empty() || replay_->held.begin()->first != so_far().updates)
    return false;
  const auto needed = replay_->pulls_before[static_cast<std::size_t>(so_far().updates)];
  return so_far().begun >= static_cast<std::int64_t>(needed);
}

void SharedRound::apply_held() {
  apply(replay_->held.begin()->second);
  replay_->held.erase(replay_->held.begin());
}

// With the turn.
void SharedRound::apply(const Held& held) {
  const Computed& computed = held.computed;
  course_.will_write();
  const plan::TaskBook::Effect effect = book_.enter(computed.task, held.seen, computed.loss);
  course_.reports().next_step();
  if (!effect.counts) computed.reports.name_to(course_.reports());
  if (effect.counts) {
    computed.reports.hand_on(course_.reports());
    if (effect.adds)
      its_.training.add(memory_, its_.training.all_pieces(), computed.gradient.values,
                        computed.loss.samples, effect.first);
    if (effect.moves) update(computed, effect);
  }
  course_.wrote();
}

void SharedRound::update(const Computed& computed, const plan::TaskBook::Effect& effect) {
  const std::int64_t step = its_.tasks.steps().first + computed.task.step;
  RoundTraining::Update update{.gradient = effect.adds ? memory_.sum : computed.gradient.values,
                               .seen = computed.gradient.weights,
                               .number = its_.first_update + effect.number,
                               .step = step,
                               .rate = effect.rate};
  update.factor = its_.training.factor_of(update.gradient, effect.divisor);
  its_.training.apply(memory_, its_.training.all_pieces(), update);
  give_buffers(computed.gradient.buffers);
  control::Faults::here().strike("update", step);
}

AsynchronousRound::Ended SharedRound::end() {
  while (replay_ && !replay_->held.empty()) {
    const auto turn = turn_when([&] { return may_apply_held(); });
    apply_held();
  }
  const auto turn = turn_when([&] { return book_.is_complete(); });
  take_all();
  if (goes_on_) course_.reports().lose();  // nobody has what the dead have reported
  return {book_.loss(), book_.order(), course_.reports()};
}

}  // namespace

std::unique_ptr<AsynchronousRound> make_shared_round(AsynchronousRound::Setting setting) {
  return std::make_unique<SharedRound>(std::move(setting));
}

}  // namespace lockstep::steps
