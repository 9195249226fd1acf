// The tasks of an asynchronous round: who may take which, in which order their gradients count, and how much.
//
//   task     the gradient of one shard in one step. Tasks have numbers, from 0 on: step by step, and in a step by shard
//   update   a gradient that counts (plan/order.h). With backups it is added to those of its step, and the last of a step
//            brings their mean into the weights; one that comes when its step is done is dropped. Else it goes into the
//            weights by itself
#pragma once

#include <lockstep/local_steps.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/order.h"
#include "plan/rounds.h"

namespace lockstep::plan {

// Of a round: its book and its order are in memory.
constexpr std::int64_t kMostTasks = 1 << 20;

struct Task {
  std::int64_t step = 0;  // of the round, from 0 on
  int shard = 0;
  bool operator==(const Task&) const = default;
};

// What is known before a round begins.
//
// Threads:   any, as a value.
// Blocking:  never.
// Failure:   none.
// Ownership: a value.
class RoundTasks {
 public:
  // `samples`: of each task, by number.
  RoundTasks(StepRange steps, int shards, const Asynchronous& rule,
             std::vector<std::int64_t> samples);

  StepRange steps() const { return steps_; }
  int shards() const { return shards_; }
  const Asynchronous& rule() const { return rule_; }
  std::int64_t count() const { return steps_.size() * shards_; }  // also those without samples
  Task task(std::int64_t number) const {
    return {number / shards_, static_cast<int>(number % shards_)};
  }
  std::int64_t number(const Task& task) const { return task.step * shards_ + task.shard; }
  std::int64_t number(const OrderedUpdate& update) const {
    return number(Task{update.step - steps_.first, update.shard});
  }
  std::int64_t samples(std::int64_t number) const {
    return samples_[static_cast<std::size_t>(number)];
  }
  std::int64_t samples_of_step(std::int64_t step) const {
    return of_steps_[static_cast<std::size_t>(step)].samples;
  }
  // How many updates a step has, and the round.
  std::int64_t needed(std::int64_t step) const;
  std::int64_t updates() const;

  // Why an order cannot be that of this round; empty: it can.
  std::string misfit(const RoundOrder& order) const;

 private:
  bool is_in_steps(const RoundOrder& order) const;
  struct OfStep {
    std::int64_t tasks = 0;  // with samples
    std::int64_t samples = 0;
  };
  StepRange steps_;
  int shards_;
  Asynchronous rule_;
  std::vector<std::int64_t> samples_;
  std::vector<OfStep> of_steps_;
};

// The loss of a task, or of several: of all samples, added up.
struct TaskLoss {
  double sum = 0;
  double samples = 0;
};

// What has become of the tasks so far. Its memory is plain values, which workers may share; then they take turns.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none.
// Ownership: borrows the tasks and the memory.
class TaskBook {
 public:
  struct Counts {
    std::int64_t claimed = 0;     // tasks
    std::int64_t begun = 0;       // tasks that have taken weights
    std::int64_t updates = 0;     // that count so far
    std::int64_t in_weights = 0;  // of them, in the weights
    std::int64_t first_open = 0;  // the first step that is not done
  };
  // Of a step: its gradients that count.
  struct OfStep {
    std::int64_t tasks = 0;
    double samples = 0;
  };
  struct Memory {
    Counts* counts = nullptr;
    OfStep* steps = nullptr;
    TaskLoss* losses = nullptr;  // by task
    OrderedUpdate* updates = nullptr;
  };
  TaskBook(const RoundTasks& tasks, Memory memory) : tasks_(tasks), memory_(memory) {}
  // For the first of those who share it: nothing has been done.
  void clear();
  // Nobody computes a task any more: those that are not in the book can be claimed again. Not in a replay.
  static void reopen(const Memory& memory) { memory.counts->claimed = 0; }

  const Counts& counts() const { return *memory_.counts; }
  // The next task that somebody must take: one with samples, and with backups of a step that is not done. Nothing: there is none,
  // or the bound on staleness forbids it for now.
  std::optional<Task> claim();
  bool all_claimed() const { return counts().claimed >= tasks_.count(); }  // after claim()
  // In a replay tasks are claimed in another order.
  std::int64_t claim_next() { return memory_.counts->claimed++; }
  // A task takes the weights; returns how many updates are in them.
  std::int64_t begin();

  // What is to be done with a gradient.
  struct Effect {
    bool counts = false;      // no: it is dropped
    bool adds = false;        // with backups: it is added to the sum of its step
    bool first = false;       // that sum is empty
    bool moves = false;       // the weights are updated
    std::int64_t number = 0;  // of the update, from 1 on: the optimizer's steps in this round
    double rate = 1;          // the part of the learning rate that the update has
    double divisor = 1;       // of the sum of the step
  };
  // The gradient of a task has come, which has seen so many updates.
  Effect enter(const Task& task, std::int64_t seen, const TaskLoss& loss);

  bool is_complete() const { return counts().updates == tasks_.updates(); }
  TaskLoss loss() const;  // of all that count, added up in the order of tasks
  RoundOrder order() const;

 private:
  bool is_open(std::int64_t number) const;
  void skip();
  const RoundTasks& tasks_;
  Memory memory_;
};

// The memory of a book that nobody shares.
class OwnTaskMemory {
 public:
  explicit OwnTaskMemory(const RoundTasks& tasks)
      : steps_(static_cast<std::size_t>(tasks.steps().size())),
        losses_(static_cast<std::size_t>(tasks.count())),
        updates_(static_cast<std::size_t>(tasks.updates())) {}
  TaskBook::Memory memory() { return {&counts_, steps_.data(), losses_.data(), updates_.data()}; }

 private:
  TaskBook::Counts counts_;
  std::vector<TaskBook::OfStep> steps_;
  std::vector<TaskLoss> losses_;
  std::vector<OrderedUpdate> updates_;
};

}  // namespace lockstep::plan
