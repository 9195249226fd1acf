#include "plan/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep::plan {

RoundTasks::RoundTasks(StepRange steps, int shards, const Asynchronous& rule,
                       std::vector<std::int64_t> samples)
    : steps_(steps), shards_(shards), rule_(rule), samples_(std::move(samples)) {
  of_steps_.resize(static_cast<std::size_t>(steps_.size()));
  for (std::int64_t number = 0; number < count(); ++number) {
    OfStep& all = of_steps_[static_cast<std::size_t>(number / shards_)];
    all.samples += this->samples(number);
    all.tasks += this->samples(number) > 0 ? 1 : 0;
  }
}

std::int64_t RoundTasks::needed(std::int64_t step) const {
  const std::int64_t tasks = of_steps_[static_cast<std::size_t>(step)].tasks;
  return std::max<std::int64_t>(tasks - rule_.backups, 1);
}

std::int64_t RoundTasks::updates() const {
  std::int64_t updates = 0;
  for (std::int64_t step = 0; step < steps_.size(); ++step) updates += needed(step);
  return updates;
}

std::string RoundTasks::misfit(const RoundOrder& order) const {
  if (order.steps != steps_) {
    return fmt::format("its round from step {} on ends before step {}, and here before step {}",
                       steps_.first, order.steps.end, steps_.end);
  }
  for (const OrderedUpdate& update : order.updates) {
    if (samples(number(update)) > 0) continue;
    return fmt::format("shard {} has no samples in step {}", update.shard, update.step);
  }
  if (static_cast<std::int64_t>(order.updates.size()) != updates() ||
      (rule_.backups > 0 && !is_in_steps(order)))
    return fmt::format("its round from step {} on has other shards", steps_.first);
  return "";
}

// With backups: as many updates of each step as it needs, one step after the other, all with the weights of their step.
bool RoundTasks::is_in_steps(const RoundOrder& order) const {
  std::int64_t number = 0;
  for (std::int64_t step = 0; step < steps_.size(); ++step) {
    const std::int64_t first = number;
    for (; number < first + needed(step); ++number) {
      const OrderedUpdate& update = order.updates[static_cast<std::size_t>(number)];
      if (update.step != steps_.first + step || update.seen != first) return false;
    }
  }
  return true;
}

void TaskBook::clear() {
  *memory_.counts = {};
  std::fill_n(memory_.steps, tasks_.steps().size(), OfStep());
  std::fill_n(memory_.losses, tasks_.count(), TaskLoss());
}

// A task whose loss is there was done before reopen().
bool TaskBook::is_open(std::int64_t number) const {
  return tasks_.samples(number) > 0 && tasks_.task(number).step >= counts().first_open &&
         memory_.losses[number].samples == 0;
}

void TaskBook::skip() {
  std::int64_t& next = memory_.counts->claimed;
  while (next < tasks_.count() && !is_open(next)) ++next;
}

std::optional<Task> TaskBook::claim() {
  skip();
  if (all_claimed()) return std::nullopt;
  const Task next = tasks_.task(counts().claimed);
  const std::int64_t staleness = tasks_.rule().staleness;
  if (staleness != Asynchronous::kUnbounded && next.step > counts().first_open + staleness)
    return std::nullopt;
  ++memory_.counts->claimed;
  return next;
}

std::int64_t TaskBook::begin() {
  ++memory_.counts->begun;
  return counts().in_weights;
}

TaskBook::Effect TaskBook::enter(const Task& task, std::int64_t seen, const TaskLoss& loss) {
  Counts& counts = *memory_.counts;
  if (task.step < counts.first_open) return {};
  memory_.losses[tasks_.number(task)] = loss;
  OfStep& of_step = memory_.steps[task.step];
  ++of_step.tasks;
  of_step.samples += loss.samples;
  const bool is_last = of_step.tasks == tasks_.needed(task.step);
  Effect effect{.counts = true};
  if (tasks_.rule().backups > 0) {
    effect.adds = true;
    effect.first = of_step.tasks == 1;
    effect.moves = is_last;
    effect.number = task.step + 1;
    effect.divisor = of_step.samples;
  } else {
    effect.moves = true;
    effect.number = counts.updates + 1;
    effect.rate = loss.samples / static_cast<double>(tasks_.samples_of_step(task.step));
    if (tasks_.rule().slows_if_stale)
      effect.rate *= rate_if_stale(counts.updates - seen, tasks_.shards());
  }
  memory_.updates[counts.updates++] = {tasks_.steps().first + task.step, task.shard, seen};
  if (effect.moves) counts.in_weights = counts.updates;
  while (counts.first_open < tasks_.steps().size() &&
         memory_.steps[counts.first_open].tasks == tasks_.needed(counts.first_open))
    ++counts.first_open;
  return effect;
}

TaskLoss TaskBook::loss() const {
  TaskLoss all;
  for (std::int64_t number = 0; number < tasks_.count(); ++number) {
    all.sum += memory_.losses[number].sum;
    all.samples += memory_.losses[number].samples;
  }
  return all;
}

RoundOrder TaskBook::order() const {
  return {tasks_.steps(), {memory_.updates, memory_.updates + counts().updates}};
}

}  // namespace lockstep::plan
