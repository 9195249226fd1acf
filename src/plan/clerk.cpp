#include "plan/clerk.h"

#include <algorithm>
#include <utility>

namespace lockstep::plan {

Clerk::Clerk(const RoundTasks& tasks, int workers, const RoundOrder* replayed)
    : tasks_(tasks),
      workers_(workers),
      memory_(tasks),
      book_(tasks, memory_.memory()),
      of_tasks_(static_cast<std::size_t>(tasks.count())),
      dropped_(static_cast<std::size_t>(workers)) {
  if (replayed != nullptr)
    replay_ = Replay{replayed, replayed->pulls(), replayed->pulls_before(), 0};
}

void Clerk::ask(int worker) {
  waiting_.push_back(worker);
  answer_all();
}

void Clerk::take(int worker, std::int64_t task) {
  of(task).worker = worker;
  of(task).wants = true;
  replay_ ? follow_order() : give(task);
}

void Clerk::done(int worker, std::int64_t task, const TaskLoss& loss) {
  of(task).worker = worker;
  of(task).loss = loss;
  if (replay_) return follow_order();
  update(task);
  answer_all();  // the bound may allow more
}

bool Clerk::none_left() const {
  return replay_ ? book_.counts().claimed == static_cast<std::int64_t>(replay_->pulls.size())
                 : book_.all_claimed();
}

// In the order in which they took weights, if that is replayed.
std::optional<std::int64_t> Clerk::next_task() {
  if (replay_) {
    if (none_left()) return std::nullopt;
    const auto number = replay_->pulls[static_cast<std::size_t>(book_.claim_next())];
    return tasks_.number(replay_->order->updates[number]);
  }
  const auto task = book_.claim();
  if (!task) return std::nullopt;
  return tasks_.number(*task);
}

void Clerk::answer_all() {
  while (!waiting_.empty()) {
    const auto task = next_task();
    if (!task && !none_left()) return;
    const int worker = waiting_.front();
    waiting_.pop_front();
    const auto place = static_cast<std::size_t>(worker);
    answers_.push_back({worker, task.value_or(-1), dropped_[place]});
    dropped_[place] = false;
    if (!task) ++released_;
  }
  end_if_all_is_done();
}

void Clerk::give(std::int64_t task) {
  of(task).seen = book_.begin();
  log_.push_back({.kind = LogEntry::Kind::kGive,
                  .worker = of(task).worker,
                  .task = task,
                  .seen = of(task).seen});
}

void Clerk::update(std::int64_t task) {
  const OfTask& its = of(task);
  const TaskBook::Effect effect = book_.enter(tasks_.task(task), its.seen, *its.loss);
  if (!effect.counts) dropped_[static_cast<std::size_t>(its.worker)] = true;
  log_.push_back({.kind = LogEntry::Kind::kUpdate,
                  .worker = its.worker,
                  .task = task,
                  .effect = effect,
                  .loss = *its.loss});
}

// Gives weights and makes updates as far as the workers are ready for what is next.
void Clerk::follow_order() {
  const RoundOrder& order = *replay_->order;
  const auto task_of = [&](std::size_t number) { return tasks_.number(order.updates[number]); };
  while (!book_.is_complete()) {
    const auto number = static_cast<std::size_t>(book_.counts().updates);
    if (replay_->given < replay_->pulls_before[number]) {
      const std::int64_t task = task_of(replay_->pulls[replay_->given]);
      if (!of(task).wants) return;
      give(task);
      ++replay_->given;
    } else {
      const std::int64_t task = task_of(number);
      if (!of(task).loss) return;
      update(task);
    }
  }
  end_if_all_is_done();
}

// Also gradients that are dropped have come then.
void Clerk::end_if_all_is_done() {
  if (released_ != workers_ || !book_.is_complete()) return;
  log_.push_back({.kind = LogEntry::Kind::kEnd, .loss = book_.loss()});
  released_ = 0;  // said once
}

std::vector<Clerk::Answer> Clerk::answers() {
  return std::exchange(answers_, {});
}

std::vector<Clerk::LogEntry> Clerk::log() {
  return std::exchange(log_, {});
}

}  // namespace lockstep::plan
