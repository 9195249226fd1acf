// What every worker says of an update, and what becomes of it: otherwise replicas would differ. A worker that cannot make
// the update says so, and all of them fail.
#pragma once

#include <chrono>
#include <exception>
#include <memory>

#include "control/announcements.h"
#include "torch/optim/update.h"

namespace lockstep::optim {

struct Said {
  std::shared_ptr<const control::Announcement> all;
  std::exception_ptr cannot;  // this worker
};

// Gradients are where the update reads them after it.
Said say_step(const Trained& trained, const GradientSource& source);

// Waits for the others, and returns how long. Mismatch, the same on every worker, if they mean different things.
std::chrono::nanoseconds hear_step(const Trained& trained, const Said& said);

}  // namespace lockstep::optim
