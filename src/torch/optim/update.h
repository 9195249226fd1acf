// How averaged gradients become new parameters: a strategy for each place that they may be in.
//
//   own      each worker updates everything, in memory of its own (host_update.cpp)
//   shared   where workers share memory each updates a slice and hands it out (host_update.cpp)
//   device   queued on a GPU, everything (device_step.cpp)
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include "control/announcements.h"
#include "flat/device_update.h"
#include "torch/divergence/watch.h"
#include "torch/optim/gradient_source.h"
#include "torch/optim/rules.h"
#include "torch/optim/state_memory.h"
#include "torch/replica/replicated.h"

namespace lockstep::optim {

// What an update works on. Apart from the updates, because it outlives them: other workers mean another update.
struct Trained {
  std::shared_ptr<replica::Replicated> model;
  Groups groups;
  StateMemory state;
  double clip_norm = 0;  // 0: no clipping

  const torch::Tensor& parameter(std::size_t entry) const {
    return model->parts().parameter(entry);
  }
  const std::vector<bool>& absent() const { return model->banks().absent(); }
  bool leaves_alone(std::size_t entry) const { return !absent().empty() && absent()[entry]; }
};

// Told what an update in memory of the host has written, so that others can finish the update if this worker dies in it
// (step/commit_page.h).
class UpdateJournal {
 public:
  virtual ~UpdateJournal() = default;
  // A piece is what the step makes of it, in every copy that this host has. From any of the threads that LibTorch uses.
  virtual void wrote(std::size_t piece) = 0;
};

// A step is two calls: after prepare() all is known that decides what will be written, and nothing has been.
//
// Threads:   one caller at a time.
// Blocking:  prepare() and apply(), which are collective; on a GPU norm(), collect() and check_at_rest() wait for it.
// Failure:   as Optimizer::step().
// Ownership: borrows what it works on.
class Update {
 public:
  Update(Trained& trained, divergence::PieceRange own)
      : trained_(trained),
        watch_(trained.model->pieces(), own, trained.model->faults(),
               trained.model->comm().rank()) {}
  virtual ~Update() = default;

  // The source is used until apply() has returned.
  virtual void prepare(const GradientSource& source) = 0;
  virtual void apply(UpdateJournal* journal) = 0;
  void step(const GradientSource& source) {
    prepare(source);
    apply(nullptr);
  }

  // What the averages will be multiplied by; on a GPU it is not known here.
  virtual double clip_factor() const { return 1; }

  // Of the gradients of the last step, before clipping; 0 without.
  virtual double norm() = 0;
  // Memory for clipping, so that no step has to take it.
  virtual void prepare_clipping() {}
  // On a GPU: what the next step takes along, in the order of the current stream, to pinned memory of the host.
  virtual void take_along(const flat::Note&) {}

  // Whether every worker updates a copy of its own.
  virtual bool has_copies() const = 0;

  // For the divergence check: what updates have seen is known after collect().
  divergence::UpdateWatch& watch() { return watch_; }
  virtual void collect() {}
  virtual void forget() { watch_.forget(); }
  // Compares without an update: before what is there is written to a file.
  void check_at_rest();

  std::chrono::nanoseconds waited() const {
    return waited_;
  }  // for other workers, in the last step

 protected:
  flat::Parity parity_at_rest(const plan::Stretch& piece) const;
  // A graph that has saved a parameter for a backward to come must notice the update, as after torch::optim.
  void bump_versions();

  Trained& trained_;
  divergence::UpdateWatch watch_;
  std::chrono::nanoseconds waited_{0};
};

// "the norm of the gradients is inf at step 3: …"
std::string diverged(double norm, std::int64_t step);

// What every worker says of an update, and what becomes of it: otherwise replicas would differ. A worker that cannot make
// the update says so, and all of them fail.
struct Said {
  std::shared_ptr<const control::Announcement> all;
  std::exception_ptr cannot;  // this worker
};

// Gradients are where the update reads them after it.
Said say_step(const Trained& trained, const GradientSource& source);

// Waits for the others, and returns how long. Mismatch, the same on every worker, if they mean different things.
std::chrono::nanoseconds hear_step(const Trained& trained, const Said& said);

// Whether a sample of the gradients costs nothing where they are.
bool can_sample(const replica::Replicated& model);

// The update for where the model is, and for how workers reach each other's memory.
std::unique_ptr<Update> make_update(Trained& trained);

// In memory of this worker, and of all workers of the host. (host_update.cpp)
std::unique_ptr<Update> make_own_update(Trained& trained);
std::unique_ptr<Update> make_shared_update(Trained& trained);

// On a GPU. norm() and collect() wait until the GPU has done the last step, step() for one of some steps before. BadInput
// from them when a norm was not finite, whose step has changed nothing. Unavailable where this build has no CUDA.
// (device_step.cpp)
std::unique_ptr<Update> make_device_step(Trained& trained);

}  // namespace lockstep::optim
