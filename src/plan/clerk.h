// The clerk of an asynchronous round whose workers share no memory: gives tasks to workers, and writes the log of the round.
//
//   ask     a worker wants a task, or hears that none is left
//   take    it wants the weights for its task
//   done    its gradient is on its way to the owners
//
//   log     what every worker does with the weights that it owns, one entry after the other: it gives them to a worker, or
//           updates them. So all slices of the weights that a worker gets have seen the same updates
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "plan/tasks.h"

namespace lockstep::plan {

// Pure: what it says follows from the calls and their order.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none: the caller has checked the numbers of workers and tasks.
// Ownership: borrows the tasks.
class Clerk {
 public:
  // With an order, which must fit the tasks: the round keeps it.
  Clerk(const RoundTasks& tasks, int workers, const RoundOrder* replayed);
  Clerk(const Clerk&) = delete;
  Clerk& operator=(const Clerk&) = delete;

  void ask(int worker);
  void take(int worker, std::int64_t task);
  void done(int worker, std::int64_t task, const TaskLoss& loss);

  struct Answer {
    int worker = 0;
    std::int64_t task = -1;    // negative: none is left
    bool was_dropped = false;  // the gradient of its task before
  };
  struct LogEntry {
    enum class Kind : std::uint8_t { kGive, kUpdate, kEnd };
    Kind kind = Kind::kGive;
    int worker = 0;  // that gets weights, or whose gradient it is
    std::int64_t task = 0;
    std::int64_t seen = 0;         // kGive: how many updates are in the weights
    TaskBook::Effect effect = {};  // kUpdate: what becomes of the gradient
    TaskLoss loss = {};            // kUpdate: of the task; kEnd: of the round
  };
  // What there is to say since the last call.
  std::vector<Answer> answers();
  std::vector<LogEntry> log();

  RoundOrder order() const { return book_.order(); }

 private:
  struct Replay {
    const RoundOrder* order = nullptr;
    std::vector<std::size_t> pulls, pulls_before;
    std::size_t given = 0;  // pulls whose tasks have weights
  };
  struct OfTask {
    int worker = -1;
    std::int64_t seen = -1;  // not negative: it has weights
    bool wants = false;
    std::optional<TaskLoss> loss;  // it is done
  };
  OfTask& of(std::int64_t task) { return of_tasks_[static_cast<std::size_t>(task)]; }
  std::optional<std::int64_t> next_task();
  bool none_left() const;  // after next_task()
  void answer_all();
  void give(std::int64_t task);
  void update(std::int64_t task);
  void follow_order();
  void end_if_all_is_done();

  const RoundTasks& tasks_;
  int workers_;
  OwnTaskMemory memory_;
  TaskBook book_;
  std::optional<Replay> replay_;
  std::vector<OfTask> of_tasks_;
  std::vector<bool> dropped_;  // by worker: its last gradient
  std::deque<int> waiting_;    // workers that have asked
  int released_ = 0;           // workers that know that no task is left
  std::vector<Answer> answers_;
  std::vector<LogEntry> log_;
};

}  // namespace lockstep::plan
