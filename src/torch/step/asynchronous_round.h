// How a worker takes part in an asynchronous round:
//
//   claim   it takes a task: the gradient of one shard in one step. The bound on staleness must allow it
//   take    its model gets the weights as they are
//   give    the task's gradient becomes an update of the weights, as they are then
//   end     the round has all its updates, and every worker the same weights, buffers and state
//
// Where workers share memory, the weights exist once, and who changes them holds a lock (shared_round.cpp). Elsewhere each worker
// owns a slice of them, and workers send each other messages (sent_round.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "plan/tasks.h"
#include "torch/step/local_model.h"
#include "torch/step/round_reports.h"
#include "torch/step/round_training.h"

namespace lockstep::steps {

// One worker's part of one round.
//
// Threads:   one caller at a time.
// Blocking:  making it, claim(), take(), give() and end(): at most the Comm's timeout for what others must do.
// Failure:   PeerLost as soon as a worker has ended; Timeout, which ends the Comm; BadInput for a gradient that is not finite and is
//            to be clipped. Then it is of no more use; in shared memory the next generation
//            may go on with the round (course.h).
// Ownership: borrows what it is made of.
class AsynchronousRound {
 public:
  struct Setting {
    LocalModel& model;
    RoundTraining& training;
    const plan::RoundTasks& tasks;
    const plan::RoundOrder* replayed = nullptr;  // null: none
    std::int64_t first_update = 0;               // how many updates the job has had before
    // Around a wait for other workers.
    std::function<void(bool begins)> waits;
  };

  virtual ~AsynchronousRound() = default;

  virtual std::optional<plan::Task> claim() = 0;  // nothing: none is left
  virtual void take(const plan::Task& task) = 0;
  // After take(): the gradient of the task, its loss, and what it has reported.
  struct Computed {
    plan::Task task;
    plan::TaskLoss loss = {};
    RoundReports reports = {};
    RoundTraining::Gradient gradient = {};
  };
  virtual void give(Computed computed) = 0;

  // The reports are those of this worker's tasks that count. The leader knows the order.
  struct Ended {
    plan::TaskLoss loss;
    plan::RoundOrder order;
    RoundReports reports;
  };
  virtual Ended end() = 0;
};

// A worker has waited for this as long as it may: ends the Comm, and throws Timeout.
[[noreturn]] void give_up_round(Comm& comm, const std::string& what);

std::unique_ptr<AsynchronousRound> make_shared_round(AsynchronousRound::Setting setting);
std::unique_ptr<AsynchronousRound> make_sent_round(AsynchronousRound::Setting setting);

}  // namespace lockstep::steps
